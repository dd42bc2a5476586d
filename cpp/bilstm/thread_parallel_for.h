/*!
 * \file thread_parallel_for.h
 * \brief A ParallelFor over std::thread, for callers outside of TVM: the Python module, the tests and the benchmark.
 *
 * It starts its threads anew at every call, some 50 microseconds; under TVM the adapter uses TVM's pool.
 */
#ifndef KOKORO_TVM_BILSTM_THREAD_PARALLEL_FOR_H_
#define KOKORO_TVM_BILSTM_THREAD_PARALLEL_FOR_H_

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "bilstm.h"

namespace kokoro_tvm {
namespace bilstm {

/*! \brief An executor with this many threads, the calling one among them. */
inline Executor ThreadExecutor(int64_t num_threads) {
  return {num_threads, [num_threads](int64_t count, const std::function<void(int64_t)>& task) {
            std::atomic<int64_t> next{0};
            const auto work = [&] {
              for (int64_t i; (i = next.fetch_add(1)) < count;) task(i);
            };
            std::vector<std::thread> helpers;
            for (int64_t i = 1; i < std::min(num_threads, count); ++i) helpers.emplace_back(work);
            work();
            for (std::thread& helper : helpers) helper.join();
          }};
}

}  // namespace bilstm
}  // namespace kokoro_tvm

#endif  // KOKORO_TVM_BILSTM_THREAD_PARALLEL_FOR_H_
