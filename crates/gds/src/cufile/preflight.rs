use std::fs;
use std::path::Path;

use nix::sys::statfs::statfs;

/// File systems that cuFile does not reach, and that containers tend to have: magic number and name.
const REFUSED: [(i64, &str); 6] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlayfs"),
    (0x6573_5546, "fuse"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
];

/// Looks for what makes cuFile hang or fail, before its first call. `root` is where `/proc`, `/dev` and `/run` are looked for; where it is not
/// the real one, in tests, every file system will do.
pub fn preflight(root: &Path, dir: &Path) -> Result<(), String> {
    machine(root)?;
    if root == Path::new("/") { file_system(dir) } else { Ok(()) }
}

/// What of the machine makes cuFile hang or fail.
pub fn machine(root: &Path) -> Result<(), String> {
    let there = |path: &str| root.join(path).exists();
    if !there("proc/modules") {
        return Err(
            "/proc/modules does not exist (a kernel without modules, or gVisor): cuFileDriverOpen would never return"
                .into(),
        );
    }
    let devices = fs::read_to_string(root.join("proc/driver/nvidia-fs/devcount")).unwrap_or_default();
    if devices.trim().parse::<u64>().is_ok_and(|devices| devices > 0) && !has_device(&root.join("dev")) {
        return Err("nvidia-fs is loaded and /dev/nvidia-fs* are missing: cuFileDriverOpen would close a descriptor of others; in a \
                    container, pass /dev/nvidia-fs* in"
            .into());
    }
    if !there("run/udev/data") {
        return Err("/run/udev is missing, without which cuFile cannot classify a file system; in a container, mount the host's read-only".into());
    }
    Ok(())
}

/// File systems that it is known to refuse.
pub fn file_system(dir: &Path) -> Result<(), String> {
    let kind = statfs(dir).map_err(|e| format!("cannot ask what file system {} is on: {e}", dir.display()))?;
    let magic = kind.filesystem_type().0;
    if let Some((_, name)) = REFUSED.iter().find(|(refused, _)| *refused == magic) {
        let dir = dir.display();
        return Err(format!(
            "{dir} is on {name}, which cuFile does not support; use ext4 or xfs on NVMe, in a container a volume"
        ));
    }
    Ok(())
}

fn has_device(dev: &Path) -> bool {
    let names = fs::read_dir(dev).into_iter().flatten().flatten();
    names.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("nvidia-fs"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(root: &Path) -> String {
        preflight(root, Path::new("/nowhere")).err().unwrap_or_default()
    }

    #[test]
    fn each_state_that_is_known_to_fail_is_found_in_time() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert!(says(root).contains("/proc/modules"));
        fs::create_dir_all(root.join("proc/driver/nvidia-fs")).unwrap();
        fs::write(root.join("proc/modules"), "").unwrap();
        assert!(says(root).contains("/run/udev"));
        fs::create_dir_all(root.join("run/udev/data")).unwrap();
        assert_eq!(says(root), "");
        fs::write(root.join("proc/driver/nvidia-fs/devcount"), "1\n").unwrap();
        assert!(says(root).contains("/dev/nvidia-fs"));
        fs::create_dir(root.join("dev")).unwrap();
        fs::write(root.join("dev/nvidia-fs0"), "").unwrap();
        assert_eq!(says(root), "");
    }

    #[test]
    fn file_systems_that_it_does_not_reach_are_refused() {
        let says = |dir: &str| file_system(Path::new(dir)).err().unwrap_or_default();
        assert!(says("/dev/shm").contains("/dev/shm is on tmpfs"));
        assert!(says("/nowhere").contains("/nowhere"));
    }
}
