//! Transparent huge pages: the advice to the kernel, and whether it follows it.

use std::fs;
use std::ptr::NonNull;

const DIR: &str = "/sys/kernel/mm/transparent_hugepage";

/// Asks the kernel for huge pages; `false` where it refuses.
///
/// # Safety
/// The `len` bytes at `base` are a mapping of ours.
pub(crate) unsafe fn advise(base: NonNull<u8>, len: usize) -> bool {
    // SAFETY: the range is a mapping, as the caller promises; advice changes no contents.
    unsafe { libc::madvise(base.as_ptr().cast(), len, libc::MADV_HUGEPAGE) == 0 }
}

/// Whether this kernel gives huge pages on request; `true` if it does not say.
pub(crate) fn is_on() -> bool {
    let read = |file: &str| fs::read_to_string(format!("{DIR}/{file}")).ok();
    is_on_by(read("hugepages-2048kB/enabled").as_deref(), read("enabled").as_deref())
}

/// By the switch for pages of 2 MiB, which newer kernels have and which may point to the one for
/// all sizes.
fn is_on_by(this_size: Option<&str>, all_sizes: Option<&str>) -> bool {
    let never = |switch: Option<&str>| switch.is_some_and(|text| text.contains("[never]"));
    let own = this_size.filter(|text| !text.contains("[inherit]"));
    !never(own.or(all_sizes))
}

#[cfg(test)]
mod tests {
    use super::is_on_by;

    #[test]
    fn the_switch_of_the_size_goes_before_the_one_for_all() {
        let on = Some("always [madvise] never\n");
        let off = Some("always madvise [never]\n");
        let inherit = Some("always [inherit] madvise never\n");
        assert!(
            is_on_by(None, None)
                && is_on_by(None, on)
                && is_on_by(inherit, on)
                && is_on_by(on, off)
        );
        assert!(!is_on_by(None, off) && !is_on_by(inherit, off) && !is_on_by(off, on));
    }
}
