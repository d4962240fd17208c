//! Whether cuFile can be used here: known causes of a hang or failure, before its first call, and
//! whether its transfers are direct.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::sys::statfs::statfs;

use super::Driver;

/// File systems without cuFile support that are common in containers: magic number and name.
const UNSUPPORTED: [(i64, &str); 6] = [
    (0x0102_1994, "tmpfs"),
    (0x8584_58f6, "ramfs"),
    (0x794c_7630, "overlayfs"),
    (0x6573_5546, "fuse"),
    (0x9123_683e, "btrfs"),
    (0x2fc1_2fc1, "zfs"),
];

/// Checks the machine and the file system of a directory. `root` contains `/proc`, `/dev` and
/// `/run`; if it is not `/`, as in tests, every file system passes.
///
/// # Errors
/// The reason why cuFile would hang or fail, with the remedy.
pub fn check_prerequisites(root: &Path, dir: &Path) -> Result<(), String> {
    check_machine(root)?;
    check_file_system(root, dir)
}

/// Checks the machine.
pub fn check_machine(root: &Path) -> Result<(), String> {
    // Where this fails, `cuFileDriverOpen` does not return.
    if let Err(e) = fs::File::open(root.join("proc/modules")) {
        return Err(format!(
            "/proc/modules cannot be opened ({e}; a kernel without modules, or gVisor): cuFileDriverOpen would never return"
        ));
    }
    // Without the module cuFile runs in compatibility mode or by P2PDMA, and needs no devices.
    let count = fs::read_to_string(root.join("proc/driver/nvidia-fs/devcount")).unwrap_or_default();
    if count.trim().parse::<u64>().is_ok_and(|count| count > 0) {
        check_devices(&root.join("dev")).map_err(|why| {
            format!("nvidia-fs is loaded, and {why}: cuFileDriverOpen would close a descriptor of another library; in a container, pass /dev/nvidia-fs* in")
        })?;
    }
    fs::read_dir(root.join("run/udev/data")).map(drop).map_err(|e| {
        format!("/run/udev cannot be read ({e}), without which cuFile cannot classify a file system; in a container, mount the host's read-only")
    })
}

/// Checks the file system; `root` as for [`check_prerequisites`].
pub fn check_file_system(root: &Path, dir: &Path) -> Result<(), String> {
    // The file system of a directory cannot be simulated below another root.
    if root != Path::new("/") {
        return Ok(());
    }
    let kind = statfs(dir)
        .map_err(|e| format!("cannot determine the file system of {}: {e}", dir.display()))?;
    let magic = kind.filesystem_type().0;
    if let Some((_, name)) = UNSUPPORTED.iter().find(|(unsupported, _)| *unsupported == magic) {
        let dir = dir.display();
        return Err(format!(
            "{dir} is on {name}, which cuFile does not support; use ext4 or xfs on NVMe, in a container a volume"
        ));
    }
    Ok(())
}

/// Checks that transfers are direct, or may be indirect (`compat`).
///
/// # Errors
/// Why not, with the remedy.
pub fn check_direct(driver: Driver, compat: bool) -> Result<(), &'static str> {
    if driver.is_direct() || compat {
        return Ok(());
    }
    Err(
        "in compatibility mode it is slower than kvtier's pinned memory; for direct transfers load nvidia-fs, or enable PCI P2PDMA",
    )
}

/// Checks that the devices of nvidia-fs exist and can be opened; in a container they may be listed
/// but forbidden.
fn check_devices(dev: &Path) -> Result<(), String> {
    let names = fs::read_dir(dev).into_iter().flatten().flatten();
    let is_nvidia_fs =
        |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with("nvidia-fs");
    let found: Vec<_> = names.filter(is_nvidia_fs).map(|entry| entry.path()).collect();
    if found.is_empty() {
        return Err("/dev/nvidia-fs* are missing".into());
    }
    // `O_NONBLOCK`: do not wait for a device that is not ready.
    let open = |path: &Path| {
        fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)
    };
    let refused = found.iter().find_map(|path| Some((path, open(path).err()?)));
    refused.map_or(Ok(()), |(path, e)| Err(format!("{} cannot be opened ({e})", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(root: &Path) -> String {
        check_prerequisites(root, Path::new("/nowhere")).err().unwrap_or_default()
    }

    #[test]
    fn each_known_cause_of_a_failure_is_detected() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        assert!(says(root).contains("/proc/modules"));
        fs::create_dir_all(root.join("proc/driver/nvidia-fs")).unwrap();
        // It exists, but cannot be opened.
        let socket = std::os::unix::net::UnixListener::bind(root.join("proc/modules")).unwrap();
        assert!(says(root).contains("/proc/modules cannot be opened"), "{}", says(root));
        drop(socket);
        fs::remove_file(root.join("proc/modules")).unwrap();
        fs::write(root.join("proc/modules"), "").unwrap();
        assert!(says(root).contains("/run/udev"));
        fs::create_dir_all(root.join("run/udev/data")).unwrap();
        assert_eq!(says(root), "");
        fs::write(root.join("proc/driver/nvidia-fs/devcount"), "1\n").unwrap();
        assert!(says(root).contains("/dev/nvidia-fs"));
        fs::create_dir(root.join("dev")).unwrap();
        fs::write(root.join("dev/nvidia-fs0"), "").unwrap();
        assert_eq!(says(root), "");
        std::os::unix::fs::symlink("nowhere", root.join("dev/nvidia-fs1")).unwrap();
        assert!(says(root).contains("nvidia-fs1 cannot be opened"), "{}", says(root));
    }

    #[test]
    fn unsupported_file_systems_are_refused() {
        let says =
            |dir: &str| check_file_system(Path::new("/"), Path::new(dir)).err().unwrap_or_default();
        assert!(says("/dev/shm").contains("/dev/shm is on tmpfs"));
        assert!(says("/nowhere").contains("/nowhere"));
    }
}
