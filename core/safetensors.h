// Safetensors files: Hugging Face's container for named tensors, and the form of our checkpoints.
//
//     u64 little-endian N | N bytes of JSON | data
//     JSON: {"__metadata__": {"key": "text"}, "name": {"dtype": "F32", "shape": [2, 3],
//            "data_offsets": [begin, end]}, ...}       offsets count from the start of data
//
// The tensors cover the data exactly: no holes, no overlaps, nothing behind them. Reference:
// github.com/huggingface/safetensors, README, "Format".
//
// The reader maps the file and trusts nothing in it: all claims are checked against the file's size
// before anything is allocated from them. The writer never holds a second copy of the model.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/dtype.h"
#include "core/file.h"

namespace loqal {

struct TensorInfo {
  std::string name;
  DType dtype = DType::F32;
  std::vector<int64_t> shape;  ///< [] is a scalar
  int64_t offset = 0;          ///< bytes from the start of the data
  int64_t bytes = 0;

  int64_t numel() const { return bytes / int64_t(size_of(dtype)); }
};

/// "[2, 3]", for messages.
std::string shape_text(const std::vector<int64_t>& shape);

class SafetensorsReader {
 public:
  /// Errors name the file, the tensor, what was expected and what was found; another kind of file
  /// (gzip, HTML, pickle, GGUF ...) is recognised. BOOL is read as U8.
  explicit SafetensorsReader(const std::string& path);
  /// From memory that outlives the reader; `where` stands for the path in errors.
  SafetensorsReader(const void* file, size_t size, const std::string& where);

  const std::string& path() const { return where_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  ///< in file order
  std::vector<std::string> names() const;                              ///< in file order
  bool contains(const std::string& name) const { return index_.count(name) > 0; }
  const TensorInfo& info(const std::string& name) const;  ///< Error if there is none of that name
  /// Aligned to its element size in files that SafetensorsWriter wrote; perhaps not in others.
  const void* data(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// After data() was read: see MappedFile::release().
  void release(const std::byte* from, int64_t bytes) const {
    if (map_) map_->release(from, size_t(bytes));
  }

 private:
  void parse(const std::byte* file, size_t size);

  std::string where_;
  std::unique_ptr<MappedFile> map_;  // null: somebody else's memory
  const std::byte* data_ = nullptr;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
  std::map<std::string, std::string> metadata_;
};

/// Converts rows [first_row, first_row + rows) of a tensor of F32, BF16, F16 or F64 to fp32,
/// exactly but for F64. Rows run over the first dimension; rows = -1 means all the rest. `out` has
/// room for rows * (numel / shape[0]) floats. Of the file little is in memory at a time.
void read_floats(const SafetensorsReader& file, const std::string& name, float* out,
                 int64_t first_row = 0, int64_t rows = -1);

/// Declare all tensors, then stream their data in the declared order, in pieces of any size:
///
///     SafetensorsWriter out(path);
///     out.declare("a", DType::F32, {2, 3});  out.declare("b", DType::I8, {5});
///     out.write(a, 24);  out.write(b, 2);  out.write(b + 2, 3);
///     FileSum sum = out.finish();
///
/// The same calls give the same bytes. Data starts at a multiple of 8, and types must be declared
/// from wide to narrow, so that every tensor is aligned: PyTorch refuses others.
class SafetensorsWriter {
 public:
  explicit SafetensorsWriter(const std::string& path,
                             std::map<std::string, std::string> metadata = {{"format", "pt"}});

  void declare(const std::string& name, DType dtype, const std::vector<int64_t>& shape);
  void write(const void* data, int64_t bytes);  ///< the first call ends the declarations
  FileSum finish();                             ///< flushed and fsynced; all data must have come

 private:
  void begin();

  std::string path_;
  std::map<std::string, std::string> metadata_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> index_;
  int64_t declared_ = 0, written_ = 0;  // bytes of data
  std::unique_ptr<FileWriter> file_;    // made by begin()
};

}  // namespace loqal
