/*!
 * \file device_api.cc
 * \brief TVM's side of the emulator: the device API of Metal in host memory, and the module that launches kernels.
 *
 * Registers device_api.metal (for the life of the process: TVM keeps the pointer), metal_emulator.configure and
 * metal_emulator.create_module. Faults of kernels arrive in Python as KernelFault.
 */
#include <dlfcn.h>
#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/map.h>
#include <tvm/ffi/error.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/reflection/registry.h>
#include <tvm/ffi/string.h>
#include <tvm/runtime/device_api.h>

#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "device_memory.h"
#include "scheduler.h"

namespace metal_emulator {
namespace {

namespace ffi = tvm::ffi;

[[noreturn]] void ThrowFault(const std::string& text) { throw ffi::Error("KernelFault", text, ""); }

// ---------------------------------------------------------------------------------------------------------- device API

class DeviceMemoryAPI final : public tvm::runtime::DeviceAPI {
 public:
  static DeviceMemoryAPI* Global() {
    static auto* api = new DeviceMemoryAPI();
    return api;
  }

  void SetDevice(tvm::Device) final {}

  void GetAttr(tvm::Device device, tvm::runtime::DeviceAttrKind kind, ffi::Any* value) final {
    switch (kind) {
      case tvm::runtime::kExist:
        *value = static_cast<int>(device.device_id == 0);
        break;
      case tvm::runtime::kMaxThreadsPerBlock:
        *value = static_cast<int>(kMaxThreads);
        break;
      case tvm::runtime::kWarpSize:
        *value = static_cast<int>(kSimdgroupThreads);
        break;
      default:
        break;  // as the real one: no value
    }
  }

  void* AllocDataSpace(tvm::Device, size_t size, size_t, DLDataType) final { return Allocate(size)->begin; }

  void FreeDataSpace(tvm::Device, void* begin) final {
    TVM_FFI_ICHECK(Free(begin)) << "freed an address at which no buffer of the emulated device starts";
  }

  void StreamSync(tvm::Device, TVMStreamHandle) final {}

 protected:
  void CopyDataFromTo(const void* from, size_t from_offset, void* to, size_t to_offset, size_t size,
                      tvm::Device from_device, tvm::Device to_device, DLDataType, TVMStreamHandle) final {
    const Buffer* source = Check(from, from_offset, size, from_device);
    Buffer* target = Check(to, to_offset, size, to_device);
    std::memcpy(static_cast<char*>(to) + to_offset, static_cast<const char*>(from) + from_offset, size);
    if (target == nullptr) return;
    if (source == nullptr) return target->MarkWritten(to_offset, size);
    std::memcpy(target->written.begin() + to_offset, source->written.begin() + from_offset, size);
    target->all_written = target->all_written && source->all_written;
  }

 private:
  /*! \brief The buffer at one end of a copy, or null on the CPU. */
  static Buffer* Check(const void* begin, size_t offset, size_t size, tvm::Device device) {
    if (device.device_type != kDLMetal) return nullptr;
    Buffer* buffer = FindBuffer(begin);
    if (buffer == nullptr) ThrowFault("copy: no buffer of the emulated device starts at the tensor's address");
    if (offset > buffer->size || size > buffer->size - offset) {
      ThrowFault("copy of " + std::to_string(size) + " bytes at byte " + std::to_string(offset) + " of a buffer of " +
                 std::to_string(buffer->size) + " bytes");
    }
    return buffer;
  }
};

// -------------------------------------------------------------------------------------------------------------- module

Settings settings;
bool active = false;
int64_t build = 0;  // which way of compiling kernels is active
uint64_t launches = 0;

/*! \brief A kernel's object code and the types of its arguments, opened. */
struct Entry {
  Kernel kernel;
  std::vector<std::string> argument_types;  // "handle" for the buffers, which come first
  std::vector<std::string> launch_tags;     // "blockIdx.x", ... in the order in which the host passes them
  int64_t build = 0;
};

class EmulatedModule final : public ffi::ModuleObj {
 public:
  EmulatedModule(ffi::Bytes serialised, ffi::String source)
      : serialised_(std::move(serialised)), source_(std::move(source)) {}

  void Add(std::shared_ptr<const Entry> entry) { entries_[entry->kernel.name] = std::move(entry); }

  const char* kind() const final { return "metal"; }
  int GetPropertyMask() const final { return ffi::Module::kRunnable | ffi::Module::kBinarySerializable; }
  ffi::Bytes SaveToBytes() const final { return serialised_; }
  ffi::String InspectSource(const ffi::String&) const final { return source_; }

  ffi::Optional<ffi::Function> GetFunction(const ffi::String& name) final {
    const auto found = entries_.find(std::string(name));
    if (found == entries_.end()) return std::nullopt;
    return ffi::Function::FromPacked([entry = found->second](ffi::PackedArgs args, ffi::Any*) { Call(*entry, args); });
  }

 private:
  static void Call(const Entry& entry, ffi::PackedArgs args);

  ffi::Bytes serialised_;
  ffi::String source_;
  std::unordered_map<std::string, std::shared_ptr<const Entry>> entries_;
};

/*! \brief A scalar as the real runtime packs it: in the first bytes of eight. */
uint64_t Pack(const ffi::AnyView& value, const std::string& type) {
  uint64_t packed = 0;
  if (type == "int64" || type == "uint64") {
    packed = static_cast<uint64_t>(value.cast<int64_t>());
  } else if (type == "int32" || type == "uint32") {
    const uint32_t low = static_cast<uint32_t>(value.cast<int64_t>());
    std::memcpy(&packed, &low, sizeof(low));
  } else if (type == "float32") {
    const float single = static_cast<float>(value.cast<double>());
    std::memcpy(&packed, &single, sizeof(single));
  } else {
    ThrowFault("scalar argument of type " + type + ", which the Metal runtime does not pass");
  }
  return packed;
}

void EmulatedModule::Call(const Entry& entry, ffi::PackedArgs args) {
  const Kernel& kernel = entry.kernel;
  auto fault = [&kernel](const std::string& text) { ThrowFault("kernel " + kernel.name + ": " + text); };
  if (!active) fault("launched outside of the emulator's with block");
  // A library's host code keeps the kernels that it first found, and TVM keeps libraries: a second load runs the first's.
  if (entry.build != build) fault("compiled with another race, fast_math or edit; load a copy of its library");
  const size_t expected = entry.argument_types.size() + entry.launch_tags.size();
  TVM_FFI_ICHECK_EQ(static_cast<size_t>(args.size()), expected) << "kernel " << kernel.name << ": number of arguments";
  Launch launch;
  launch.kernel = &kernel;
  for (size_t i = 0; i < entry.argument_types.size(); ++i) {
    if (entry.argument_types[i] != "handle") {
      launch.scalars.push_back(Pack(args[i], entry.argument_types[i]));
      continue;
    }
    void* begin = args[i].cast<void*>();
    Buffer* buffer = FindBuffer(begin);
    if (buffer == nullptr) {
      fault("buffer argument " + std::to_string(i) + " is " +
            (FindBufferAround(begin) ? "an address inside a buffer; Metal binds whole buffers"
                                     : "no buffer of the device"));
    }
    launch.buffers.push_back(buffer);
  }
  for (size_t i = 0; i < entry.launch_tags.size(); ++i) {
    const std::string& tag = entry.launch_tags[i];
    const int64_t extent = args[entry.argument_types.size() + i].cast<int64_t>();
    if (extent < 0 || extent > INT32_MAX) fault(tag + " has extent " + std::to_string(extent));
    uint32_t* extents = tag.rfind("blockIdx.", 0) == 0 ? launch.groups : launch.threads;
    extents[tag.back() - 'x'] = static_cast<uint32_t>(extent);
  }
  Settings now = settings;
  now.seed += launches++;
  try {
    Run(launch, now);
  } catch (const KernelFault& error) {
    fault(error.what());
  }
  const ffi::Function record = ffi::Function::GetGlobalRequired("metal_emulator.record_launch");
  record(ffi::String(kernel.name), static_cast<int64_t>(launch.threads[0]) * launch.threads[1] * launch.threads[2],
         static_cast<int64_t>(launch.groups[0]) * launch.groups[1] * launch.groups[2]);
}

/*! \brief Opens a kernel's shared object; it stays open, as functions of it may be kept. */
Kernel Open(const std::string& name, const std::string& path) {
  void* object = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  TVM_FFI_ICHECK(object != nullptr) << dlerror();
  auto symbol = [object, &path](const char* symbol_name) {
    void* address = dlsym(object, symbol_name);
    TVM_FFI_ICHECK(address != nullptr) << path << " has no " << symbol_name;
    return address;
  };
  Kernel kernel{};
  kernel.name = name;
  kernel.run_thread = reinterpret_cast<ThreadFunction>(symbol("metal_emulator_run_thread"));
  kernel.threadgroup_begin = *static_cast<char**>(symbol("metal_emulator_threadgroup_begin"));
  kernel.threadgroup_bytes = *static_cast<char**>(symbol("metal_emulator_threadgroup_end")) - kernel.threadgroup_begin;
  return kernel;
}

/*!
 * \brief A module of compiled kernels.
 * \param kernels For each: name, path of the shared object, types of the arguments, launch tags, whether it
 * synchronises, whether it is watched, bytes of its smallest element. \param serialised What the module saves to, as
 * TVM's own Metal module would.
 */
ffi::Module CreateModule(ffi::Array<ffi::Array<ffi::Any>> kernels, ffi::Bytes serialised, ffi::String source) {
  auto module = ffi::make_object<EmulatedModule>(std::move(serialised), std::move(source));
  for (const ffi::Array<ffi::Any>& fields : kernels) {
    auto entry = std::make_shared<Entry>();
    entry->kernel = Open(fields[0].cast<ffi::String>(), fields[1].cast<ffi::String>());
    for (const ffi::String& type : fields[2].cast<ffi::Array<ffi::String>>()) entry->argument_types.push_back(type);
    for (const ffi::String& tag : fields[3].cast<ffi::Array<ffi::String>>()) entry->launch_tags.push_back(tag);
    entry->kernel.synchronises = fields[4].cast<bool>();
    entry->kernel.watched = fields[5].cast<bool>();
    entry->kernel.granule = fields[6].cast<int64_t>();
    entry->build = build;
    module->Add(std::move(entry));
  }
  return ffi::Module(module);
}

void Configure(bool is_active, int64_t order, int64_t seed, bool flush_subnormals, int64_t active_build) {
  active = is_active;
  build = active_build;
  settings = {static_cast<Order>(order), static_cast<uint64_t>(seed), flush_subnormals};
  launches = 0;
}

TVM_FFI_STATIC_INIT_BLOCK() {
  namespace refl = tvm::ffi::reflection;
  refl::GlobalDef()
      .def_packed("device_api.metal",
                  [](ffi::PackedArgs, ffi::Any* result) {
                    *result = static_cast<void*>(static_cast<tvm::runtime::DeviceAPI*>(DeviceMemoryAPI::Global()));
                  })
      .def("metal_emulator.configure", Configure)
      .def("metal_emulator.create_module", CreateModule);
}

}  // namespace
}  // namespace metal_emulator
