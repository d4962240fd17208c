use std::fmt;
use std::io;

/// An error that a call of cuFile returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CufileError {
    /// The function.
    pub call: &'static str,
    /// cuFile's code; below 5000 an `errno`.
    pub code: i32,
    /// CUDA's code if CUDA failed; else 0.
    pub cuda: i32,
}

/// Codes of errors that concern the file system or machine, not a single file.
const PERMANENT_CODES: [i32; 14] =
    [5001, 5004, 5005, 5007, 5008, 5009, 5010, 5019, 5020, 5027, 5030, 5033, 5034, 5036];

impl CufileError {
    /// Whether every other file will fail in the same way.
    pub fn is_permanent(&self) -> bool {
        PERMANENT_CODES.contains(&self.code)
    }

    /// Converts the return value of a read or write: a number of bytes, a negated code, or -1 with
    /// the code in `errno`, which may be one of cuFile.
    pub fn check_bytes(call: &'static str, returned: isize) -> Result<usize, CufileError> {
        if let Ok(bytes) = usize::try_from(returned) {
            return Ok(bytes);
        }
        let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(0);
        let code = if returned == -1 {
            errno()
        } else {
            i32::try_from(returned.unsigned_abs()).unwrap_or(i32::MAX)
        };
        Err(CufileError { call, code, cuda: 0 })
    }
}

impl fmt::Display for CufileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CufileError { call, code, cuda } = self;
        if *code < 5000 {
            return write!(f, "{call}: {}", io::Error::from_raw_os_error(*code));
        }
        write!(f, "{call} returned {code}: {}", explain(*code))?;
        if *cuda == 0 { Ok(()) } else { write!(f, " (CUDA's code is {cuda})") }
    }
}

impl std::error::Error for CufileError {}

/// What a code means, and the remedy.
// tidy: allow(fn-lines): one arm a code
fn explain(code: i32) -> &'static str {
    match code {
        5001 => {
            "the driver is not open: nvidia-fs is not loaded and compatibility mode is off; load nvidia-fs (modprobe nvidia_fs)"
        }
        5002 => "a property that the driver does not have; check cufile.json",
        5003 => "a property out of its range; check the sizes in cufile.json",
        5004 => {
            "nvidia-fs is of another version than libcufile; update both to the same CUDA release"
        }
        5005 => "the version of nvidia-fs cannot be read; load the module again",
        5006 => "the driver is closing; another library in this process closed it",
        5007 => "this platform is not supported",
        5008 => {
            "this file system is not supported; use ext4 or xfs on NVMe, or a parallel file system with GPUDirect support"
        }
        5009 => "this GPU is not supported",
        5010 => "nvidia-fs failed; see dmesg",
        5011 => "a CUDA call failed",
        5012 => "not a pointer into GPU memory",
        5013 => "unsupported memory, such as managed memory",
        5014 => "the transfer exceeds the memory's allocation",
        5015 => "the memory belongs to another CUDA context",
        5016 => "the transfer exceeds what was pinned",
        5017 => "the transfer exceeds what was mapped",
        5018 => "neither a regular file nor a block device",
        5019 => "the file was opened with flags that are not supported",
        5020 => "the file was not opened for direct I/O; the file system has to support O_DIRECT",
        5022 => "an argument is wrong",
        5023 => "the memory is registered already",
        5024 => "the memory is not registered",
        5025 => "permission denied; in a container, give it /dev/nvidia-fs*",
        5026 => "the driver is open already; properties are set before",
        5027 => {
            "the file system could not be classified; in a container, mount the host's /run/udev read-only, or use a volume instead of the \
                 container's own file system"
        }
        5028 => "the file is registered already",
        5029 => "no GPU; pass one into the container",
        5030 => {
            "the file could not be set up, most often because its mount is not supported; in a container, use a volume of ext4 or xfs, \
                 and mount the host's /run/udev read-only"
        }
        5031 => {
            "the file cannot be opened once more: it was deleted, or the limit of open files (ulimit -n) is reached"
        }
        5033 => "libcuda, or a function of it, is missing; update the NVIDIA driver",
        5034 => "switched off by cufile.json, or this file system is on its denylist",
        5035 => "an entry of a batch was not submitted",
        5036 => {
            "the GPU's memory cannot be pinned: BAR1, or max_device_pinned_mem_size_kb in cufile.json, is used up; register less"
        }
        5037 => "the batch is full",
        5038 => "transfers in streams are not supported here",
        5039..=5042 | 5049 => "a batch failed",
        5043 => "no memory left",
        5044 => "the storage failed; see dmesg",
        5045 => "something could not be registered",
        5046 => "internal error of cuFile",
        5047 => "cuFile found no CUDA context",
        5048 => "internal error of nvidia-fs; see dmesg",
        _ => "an unknown code; see cufile.log",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_an_explanation() {
        for code in (5001..=5049).filter(|code| ![5021, 5032].contains(code)) {
            assert!(!explain(code).contains("unknown code"), "{code}");
        }
        for code in [5000, 5021, 5032, 5050, i32::MAX] {
            assert!(explain(code).contains("unknown code"), "{code}");
        }
    }

    #[test]
    fn return_values_are_bytes_or_codes() {
        assert_eq!(CufileError::check_bytes("r", 0), Ok(0));
        assert_eq!(CufileError::check_bytes("r", 4096), Ok(4096));
        assert_eq!(CufileError::check_bytes("r", -5011).unwrap_err().code, 5011);
        assert_eq!(CufileError::check_bytes("r", isize::MIN).unwrap_err().code, i32::MAX);
    }

    #[test]
    fn an_error_names_call_code_and_remedy() {
        let text = CufileError { call: "cuFileHandleRegister", code: 5027, cuda: 0 }.to_string();
        assert!(
            text.starts_with("cuFileHandleRegister returned 5027: ") && text.contains("/run/udev"),
            "{text}"
        );
        assert!(
            CufileError { call: "c", code: 5011, cuda: 719 }
                .to_string()
                .ends_with("(CUDA's code is 719)")
        );
        assert!(
            CufileError { call: "cuFileRead", code: 5, cuda: 0 }.to_string().contains("os error 5")
        );
    }
}
