#include "core/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string_view>
#include <tuple>

#include "core/error.h"
#include "core/json.h"

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

namespace loqal {

namespace {
constexpr uint64_t kMaxHeader = 100'000'000;  // the reference reader's limit

/// What a file that is not safetensors probably is: only asked once its header has failed, because
/// a valid header length may start with any bytes.
std::string recognised(std::string_view file) {
  const struct {
    std::string_view magic;
    const char* kind;
  } kinds[] = {{"\x1f\x8b", "a gzip file"},
               {"GGUF", "a GGUF file"},
               {"PK\x03\x04", "a zip file or PyTorch pickle (.bin, .pt)"},
               {"version https://git-lfs", "a Git LFS pointer, not the file itself"},
               {"\x89HDF", "an HDF5 file"}};
  for (const auto& [magic, kind] : kinds)
    if (file.starts_with(magic)) return cat("; it looks like ", kind);
  if (file.size() >= 2 && file[0] == '\x80' && file[1] >= 2 && file[1] <= 5)
    return "; it looks like a Python pickle";
  const size_t text = file.substr(0, 64).find_first_not_of(" \t\r\n\xef\xbb\xbf");
  if (text != std::string_view::npos && file[text] == '<')
    return "; it looks like an HTML page (a failed download?)";
  if (text != std::string_view::npos && file[text] == '{') return "; it looks like a JSON file";
  return "";
}

/// Bytes of a tensor; false if that is negative or does not fit into 63 bits.
bool tensor_bytes(const std::vector<int64_t>& shape, DType dtype, int64_t& bytes) {
  bytes = int64_t(size_of(dtype));
  for (const int64_t n : shape)
    if (n < 0 || __builtin_mul_overflow(bytes, n, &bytes)) return false;
  return true;
}

/// One entry of the header, checked by itself and against the size of the data.
TensorInfo parse_tensor(const std::string& name, const JsonMap& entry, int64_t data_size,
                        const std::string& file) {
  const std::string where = cat(file, ": tensor \"", name, "\"");
  TensorInfo tensor;
  tensor.name = name;
  const std::string dtype = get<std::string>(entry, "dtype", where);
  tensor.dtype = dtype == "BOOL" ? DType::U8 : dtype_from_name(dtype, where);
  tensor.shape = get<std::vector<int64_t>>(entry, "shape", where);
  const auto offsets = get<std::vector<int64_t>>(entry, "data_offsets", where);
  if (offsets.size() != 2)
    fail(cat(where, ": \"data_offsets\": expected 2 numbers, found ", offsets.size()));
  const int64_t begin = offsets[0], end = offsets[1];
  if (begin < 0 || begin > end || end > data_size)
    fail(cat(where, ": expected its bytes within [0,", data_size, "), found [", begin, ",", end,
             ")"),
         end > data_size ? "the file is cut off or damaged: copy or download it again" : "");
  int64_t expected;
  if (!tensor_bytes(tensor.shape, tensor.dtype, expected))
    fail(cat(where, ": its shape ", shape_text(tensor.shape), " is negative or too large"));
  if (end - begin != expected)
    fail(cat(where, ": expected ", expected, " bytes for ", dtype, shape_text(tensor.shape),
             ", found ", end - begin));
  tensor.offset = begin;
  tensor.bytes = end - begin;
  return tensor;
}

/// The tensors, sorted by offset, must cover [0, data_size) without holes and overlaps.
void check_cover(const std::vector<TensorInfo>& tensors, int64_t data_size,
                 const std::string& file) {
  int64_t end = 0;
  for (const TensorInfo& t : tensors) {
    if (t.offset != end)
      fail(cat(file, ": tensor \"", t.name, "\": expected at byte ", end, " of the data, found at ",
               t.offset,
               t.offset < end ? ": it overlaps the tensor before it"
                              : ": bytes before it belong to no tensor"));
    end += t.bytes;
  }
  if (end != data_size)
    fail(cat(file, ": expected ", end, " bytes of data after the header, found ", data_size));
}

/// Unaligned-safe; the fixed-size memcpy compiles to a plain load and the loop vectorizes.
template <class Stored, class Convert>
void convert(const std::byte* from, int64_t n, float* out, Convert to_fp32) {
  for (int64_t i = 0; i < n; i++) {
    Stored x;
    std::memcpy(&x, from + i * int64_t(sizeof x), sizeof x);
    out[i] = to_fp32(x);
  }
}
}  // namespace

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); i++) text += cat(i ? ", " : "", shape[i]);
  return text + "]";
}

SafetensorsReader::SafetensorsReader(const std::string& path)
    : where_(path), map_(std::make_unique<MappedFile>(path)) {
  parse(map_->data(), map_->size());
}

SafetensorsReader::SafetensorsReader(const void* file, size_t size, const std::string& where)
    : where_(where) {
  parse(static_cast<const std::byte*>(file), size);
}

void SafetensorsReader::parse(const std::byte* file, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(file), size);
  const std::string not_one = cat(where_, ": not a safetensors file: ");
  uint64_t length = 0;
  if (size < sizeof length + 2)
    fail(cat(not_one, "expected at least 10 bytes, found ", size, recognised(text)));
  std::memcpy(&length, file, sizeof length);
  if (length > kMaxHeader)
    fail(cat(not_one, "expected a header of at most ", kMaxHeader, " bytes, found ", length,
             recognised(text)));
  if (length > size - sizeof length)
    fail(cat(not_one, "expected a header of ", length, " bytes, found a file of ", size, " bytes",
             recognised(text)),
         "if it is one, it is cut off: copy or download it again");
  const std::string_view header = text.substr(sizeof length, length);
  if (!header.starts_with('{'))
    fail(cat(not_one, "expected a JSON object at byte 8", recognised(text)));
  const auto all = parse_json<JsonMap>(header, where_ + ": header");

  const int64_t data_size = int64_t(size - sizeof length - length);
  data_ = file + sizeof length + length;
  for (const auto& [name, entry] : all.items()) {
    if (name != "__metadata__") {
      tensors_.push_back(parse_tensor(name, entry, data_size, where_));
    } else {
      if (!entry.is_object())
        fail(cat(where_, ": \"__metadata__\": expected an object of strings"));
      for (const auto& pair : entry.items())
        metadata_[pair.key()] = get<std::string>(entry, pair.key(), where_ + ": __metadata__");
    }
  }
  std::sort(tensors_.begin(), tensors_.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::tie(a.offset, a.bytes, a.name) < std::tie(b.offset, b.bytes, b.name);
  });
  check_cover(tensors_, data_size, where_);
  for (size_t i = 0; i < tensors_.size(); i++) index_[tensors_[i].name] = i;
}

std::vector<std::string> SafetensorsReader::names() const {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : tensors_) names.push_back(tensor.name);
  return names;
}

const TensorInfo& SafetensorsReader::info(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end())
    fail(cat(where_, ": expected a tensor \"", name, "\", found none of that name among ",
             tensors_.size()));
  return tensors_[found->second];
}

const void* SafetensorsReader::data(const std::string& name) const {
  return data_ + info(name).offset;
}

void read_floats(const SafetensorsReader& file, const std::string& name, float* out,
                 int64_t first_row, int64_t rows) {
  const TensorInfo& t = file.info(name);
  const int64_t all_rows = t.shape.empty() ? 1 : t.shape[0];
  if (rows < 0) rows = all_rows - first_row;
  LOQAL_ASSERT(first_row >= 0 && rows >= 0 && rows <= all_rows - first_row, name, " has ", all_rows,
               " rows");
  if (rows == 0) return;
  const int64_t cols = t.numel() / all_rows, all = rows * cols, size = int64_t(size_of(t.dtype));
  const auto* from = static_cast<const std::byte*>(file.data(name)) + first_row * cols * size;
  constexpr int64_t slab = 1 << 20;
  for (int64_t done = 0; done < all; done += slab, from += slab * size, out += slab) {
    const int64_t n = std::min(slab, all - done);
    switch (t.dtype) {
      case DType::F32: std::memcpy(out, from, size_t(n) * sizeof(float)); break;
      case DType::BF16: convert<bf16>(from, n, out, [](bf16 x) { return to_float(x); }); break;
      case DType::F16: convert<uint16_t>(from, n, out, half_to_float); break;
      case DType::F64: convert<double>(from, n, out, [](double x) { return float(x); }); break;
      default:
        fail(cat(file.path(), ": tensor \"", name, "\": expected F32, BF16, F16 or F64, found ",
                 name_of(t.dtype)));
    }
    file.release(from, n * size);
  }
}

SafetensorsWriter::SafetensorsWriter(const std::string& path,
                                     std::map<std::string, std::string> metadata)
    : path_(path), metadata_(std::move(metadata)) {}

void SafetensorsWriter::declare(const std::string& name, DType dtype,
                                const std::vector<int64_t>& shape) {
  LOQAL_ASSERT(!file_, path_, ": declare \"", name, "\" before the first write");
  LOQAL_ASSERT(name != "__metadata__" && index_.emplace(name, tensors_.size()).second, path_,
               ": \"", name, "\" is reserved or declared twice");
  LOQAL_ASSERT(tensors_.empty() || size_of(dtype) <= size_of(tensors_.back().dtype), path_, ": \"",
               name, "\": declare wider types first, so that all tensors are aligned");
  TensorInfo tensor{name, dtype, shape, declared_, 0};
  LOQAL_ASSERT(tensor_bytes(shape, dtype, tensor.bytes), name, " has shape ", shape_text(shape));
  declared_ += tensor.bytes;
  tensors_.push_back(std::move(tensor));
}

void SafetensorsWriter::begin() {
  JsonMap header = JsonMap::object();  // sorted keys, looked up fast
  if (!metadata_.empty()) header["__metadata__"] = metadata_;
  for (const TensorInfo& t : tensors_)
    header[t.name] = {{"dtype", name_of(t.dtype)},
                      {"shape", t.shape},
                      {"data_offsets", {t.offset, t.offset + t.bytes}}};
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  LOQAL_ASSERT(length <= kMaxHeader, path_, ": a header of ", length, " bytes");
  file_ = std::make_unique<FileWriter>(path_, int64_t(sizeof length + length) + declared_);
  file_->write(&length, sizeof length);
  file_->write(text);
}

void SafetensorsWriter::write(const void* data, int64_t bytes) {
  if (!file_) begin();
  LOQAL_ASSERT(bytes >= 0 && bytes <= declared_ - written_, path_, ": ", bytes,
               " bytes are more than declared");
  file_->write(data, size_t(bytes));
  written_ += bytes;
}

FileSum SafetensorsWriter::finish() {
  if (!file_) begin();
  LOQAL_ASSERT(written_ == declared_, path_, ": ", declared_, " bytes declared, ", written_,
               " written");
  return file_->finish();
}

}  // namespace loqal
