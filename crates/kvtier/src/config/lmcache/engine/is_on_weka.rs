//! Detects Weka's file system, where LMCache names its GDS files differently.

use std::path::Path;

/// Reads the system's table of mounts, as LMCache does. A path that does not exist yet is on the file
/// system of the directory above it.
pub(super) fn is_on_weka(path: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    // Not `canonicalize`: the path need not exist yet.
    std::path::absolute(path).is_ok_and(|path| kind_of(&mounts, &path) == Some("wekafs"))
}

/// The kind of the file system whose mount point is the longest above a path; of those mounted
/// there one over the other, the last.
fn kind_of<'m>(mounts: &'m str, path: &Path) -> Option<&'m str> {
    let lines = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((Path::new(fields.next()?), fields.next()?))
    });
    let above = lines.filter(|(point, _)| path.starts_with(point));
    above.max_by_key(|(point, _)| point.components().count()).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_mount_point_counts_and_of_equals_the_last() {
        let mounts = "/dev/a / ext4 rw 0 0\nw /mnt/w wekafs rw 0 0\nt /mnt/w/t tmpfs rw 0 0\nx /mnt/x ext4 rw\nw /mnt/x wekafs rw\n";
        let kind = |path: &str| kind_of(mounts, Path::new(path));
        assert_eq!((kind("/mnt/w/kv"), kind("/mnt/w")), (Some("wekafs"), Some("wekafs")));
        assert_eq!(
            (kind("/mnt/ww"), kind("/mnt/w/t/kv"), kind("/mnt/x/kv")),
            (Some("ext4"), Some("tmpfs"), Some("wekafs"))
        );
        assert_eq!(kind_of("", Path::new("/")), None);
        assert!(!is_on_weka(Path::new("/")));
    }
}
