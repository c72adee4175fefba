// XLA's side of a call, for tests, no more lenient than XLA on a GPU:
//   - buffers are aligned to 16 bytes and not more, and have guards on both sides
//   - scratch memory is given at alignments up to 16, and belongs to someone else once the handler has returned
//   - attributes are sorted by name
#ifndef TFTRAIN_CUSTOM_OPS_FFI_MOCK_XLA_H_
#define TFTRAIN_CUSTOM_OPS_FFI_MOCK_XLA_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/interface/tensor.h"
#include "xla/ffi/api/c_api.h"

struct XLA_FFI_Error {
  std::string message;
};

struct XLA_FFI_ExecutionContext {
  // Memory that handlers have asked for, in order.
  std::deque<std::vector<char>> scratch;
};

namespace tftrain {

constexpr char kPoison = '\x7b';  // as fp32 about 1e36, which no sum hides
constexpr char kGuard = '\x5a';

inline bool IsAll(const std::vector<char>& bytes, char value) {
  return std::all_of(bytes.begin(), bytes.end(), [value](char byte) { return byte == value; });
}

// Device memory at an odd multiple of 16.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(int64_t bytes) : bytes_(bytes), memory_(bytes + 2 * kGuardBytes + 32, kGuard) { Poison(); }

  char* data() {
    const uintptr_t behind_guard = reinterpret_cast<uintptr_t>(memory_.data()) + kGuardBytes;
    return memory_.data() + kGuardBytes + (48 - behind_guard % 32) % 32;
  }
  int64_t bytes() const { return bytes_; }

  void Poison() { std::memset(data(), kPoison, bytes_); }
  void Assign(const std::vector<char>& contents) { std::memcpy(data(), contents.data(), bytes_); }
  std::vector<char> Contents() { return {data(), data() + bytes_}; }

  bool GuardsAreIntact() {
    const char* const begin = data();
    return std::all_of(const_cast<const char*>(memory_.data()), begin, [](char byte) { return byte == kGuard; }) &&
           std::all_of(begin + bytes_, const_cast<const char*>(memory_.data()) + memory_.size(),
                       [](char byte) { return byte == kGuard; });
  }

 private:
  static constexpr int64_t kGuardBytes = 1024;

  int64_t bytes_;
  std::vector<char> memory_;
};

// An op's attributes as XLA passes them.
class CallAttributes {
 public:
  template <typename Op>
  explicit CallAttributes(Op op) {
    op.VisitAttributes(*this);
    for (auto& [name, value] : values_) {
      names_.push_back({name.data(), name.size()});
      types_.push_back(value.type);
      attributes_.push_back(value.type == XLA_FFI_AttrType_ARRAY ? static_cast<void*>(&value.array) : &value.scalar);
    }
    for (XLA_FFI_ByteSpan& name : names_) name_pointers_.push_back(&name);
  }
  CallAttributes(const CallAttributes&) = delete;

  void operator()(const char* name, float* value) { AddScalar(name, XLA_FFI_DataType_F32, *value); }
  void operator()(const char* name, bool* value) { AddScalar(name, XLA_FFI_DataType_PRED, *value); }
  void operator()(const char* name, int64_t* value) { AddScalar(name, XLA_FFI_DataType_S64, *value); }
  void operator()(const char* name, std::vector<int64_t>* values) {
    Value& to = values_[name];
    to.type = XLA_FFI_AttrType_ARRAY;
    to.numbers = *values;
    to.array = {XLA_FFI_DataType_S64, to.numbers.size(), to.numbers.data()};
  }

  XLA_FFI_Attrs attrs() {
    return {XLA_FFI_Attrs_STRUCT_SIZE, nullptr,           static_cast<int64_t>(types_.size()),
            types_.data(),             name_pointers_.data(), attributes_.data()};
  }

 private:
  struct Value {
    XLA_FFI_AttrType type;
    int64_t bits;
    XLA_FFI_Scalar scalar;
    std::vector<int64_t> numbers;
    XLA_FFI_Array array;
  };

  template <typename T>
  void AddScalar(const char* name, XLA_FFI_DataType dtype, T value) {
    Value& to = values_[name];
    to.type = XLA_FFI_AttrType_SCALAR;
    std::memcpy(&to.bits, &value, sizeof(value));
    to.scalar = {dtype, &to.bits};
  }

  std::map<std::string, Value> values_;  // sorted, and its elements stay where they are
  std::vector<XLA_FFI_ByteSpan> names_;
  std::vector<XLA_FFI_ByteSpan*> name_pointers_;
  std::vector<XLA_FFI_AttrType> types_;
  std::vector<void*> attributes_;
};

inline XLA_FFI_DataType XlaType(Element element) {
  const XLA_FFI_DataType types[] = {XLA_FFI_DataType_F32, XLA_FFI_DataType_F16, XLA_FFI_DataType_BF16,
                                    XLA_FFI_DataType_S32, XLA_FFI_DataType_S64, XLA_FFI_DataType_U8};
  return types[static_cast<int>(element)];
}

class MockXla {
 public:
  MockXla() {
    api_.struct_size = XLA_FFI_Api_STRUCT_SIZE;
    api_.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    api_.XLA_FFI_Error_Create = [](XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->message}; };
    api_.XLA_FFI_Error_GetMessage = [](XLA_FFI_Error_GetMessage_Args* args) {
      args->message = args->error->message.c_str();
    };
    api_.XLA_FFI_Error_Destroy = [](XLA_FFI_Error_Destroy_Args* args) { delete args->error; };
    api_.XLA_FFI_Stream_Get = [](XLA_FFI_Stream_Get_Args* args) -> XLA_FFI_Error* {
      args->stream = nullptr;
      return nullptr;
    };
    api_.XLA_FFI_DeviceMemory_Allocate = [](XLA_FFI_DeviceMemory_Allocate_Args* args) -> XLA_FFI_Error* {
      if (args->alignment > 16) return new XLA_FFI_Error{"Unsupported alignment: " + std::to_string(args->alignment)};
      args->data = args->ctx->scratch.emplace_back(args->size, kPoison).data();
      return nullptr;
    };
    api_.XLA_FFI_DeviceMemory_Free = [](XLA_FFI_DeviceMemory_Free_Args* args) -> XLA_FFI_Error* {
      std::memset(args->data, kPoison, args->size);  // as its next owner may
      return nullptr;
    };
  }
  MockXla(const MockXla&) = delete;

  // Calls a handler; returns the error's message, or nothing.
  template <typename Op>
  std::string Call(XLA_FFI_Handler* handler, const Op& op, const std::vector<Tensor>& in,
                   const std::vector<Tensor>& results) {
    Buffers args(in), rets(results);
    std::vector<XLA_FFI_ArgType> arg_types(in.size(), XLA_FFI_ArgType_BUFFER);
    std::vector<XLA_FFI_RetType> ret_types(results.size(), XLA_FFI_RetType_BUFFER);
    CallAttributes attributes(op);
    XLA_FFI_CallFrame frame = Frame();
    frame.args = {XLA_FFI_Args_STRUCT_SIZE, nullptr, args.size(), arg_types.data(), args.pointers()};
    frame.rets = {XLA_FFI_Rets_STRUCT_SIZE, nullptr, rets.size(), ret_types.data(), rets.pointers()};
    frame.attrs = attributes.attrs();
    const std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
    return error == nullptr ? "" : error->message;
  }

  // Whether XLA may record the handler in a CUDA graph.
  bool IsCommandBufferCompatible(XLA_FFI_Handler* handler) {
    XLA_FFI_Metadata metadata = {XLA_FFI_Metadata_STRUCT_SIZE, {}, 0};
    XLA_FFI_Metadata_Extension extension = {
        {XLA_FFI_Metadata_Extension_STRUCT_SIZE, XLA_FFI_Extension_Metadata, nullptr}, &metadata};
    XLA_FFI_CallFrame frame = Frame();
    frame.extension_start = &extension.extension_base;
    const std::unique_ptr<XLA_FFI_Error> error(handler(&frame));
    return error == nullptr && metadata.traits & XLA_FFI_HANDLER_TRAITS_COMMAND_BUFFER_COMPATIBLE;
  }

  // Whether scratch memory that handlers gave back has been written to since.
  bool FreedScratchWasWritten() const {
    return std::any_of(context_.scratch.begin(), context_.scratch.end(),
                       [](const std::vector<char>& bytes) { return !IsAll(bytes, kPoison); });
  }

 private:
  class Buffers {
   public:
    explicit Buffers(const std::vector<Tensor>& tensors) : tensors_(tensors) {
      for (Tensor& tensor : tensors_) {
        buffers_.push_back({XLA_FFI_Buffer_STRUCT_SIZE, nullptr, XlaType(tensor.element), tensor.data,
                            tensor.dims.rank(), tensor.dims.sizes.data()});
      }
      for (XLA_FFI_Buffer& buffer : buffers_) pointers_.push_back(&buffer);
    }
    int64_t size() const { return buffers_.size(); }
    void** pointers() { return pointers_.data(); }

   private:
    std::vector<Tensor> tensors_;
    std::vector<XLA_FFI_Buffer> buffers_;
    std::vector<void*> pointers_;
  };

  XLA_FFI_CallFrame Frame() {
    XLA_FFI_CallFrame frame = {};
    frame.struct_size = XLA_FFI_CallFrame_STRUCT_SIZE;
    frame.api = &api_;
    frame.ctx = &context_;
    frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
    return frame;
  }

  XLA_FFI_Api api_ = {};
  XLA_FFI_ExecutionContext context_;
};

}  // namespace tftrain

#endif  // TFTRAIN_CUSTOM_OPS_FFI_MOCK_XLA_H_
