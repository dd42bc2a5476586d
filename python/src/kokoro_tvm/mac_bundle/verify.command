#!/bin/sh
# Checks every kernel of this bundle on this Mac's GPU, times it, and writes report.txt beside this file.
cd "$(dirname "$0")" || exit 1
# Files that came by mail or browser are quarantined; the libraries are signed ad hoc, not by a registered developer.
xattr -dr com.apple.quarantine . 2>/dev/null
{
  echo "kokoro-tvm Metal check, $(date -u +%Y-%m-%dT%H:%M:%SZ)"
  sw_vers
  sysctl -n machdep.cpu.brand_string hw.memsize
  system_profiler SPDisplaysDataType 2>/dev/null | grep -E "Chipset Model|Total Number of Cores|Metal"
  ./kokoro-check .
  status=$?
  echo "exit code $status"
  exit $status
} 2>&1 | tee report.txt
echo "Please send report.txt back."
