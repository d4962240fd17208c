//! The file tier's tests on file systems of their own, made in files and mounted for the while.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::sh::{Cmd, root};
use crate::testing::{self, Count};

/// Name, bytes of the image, and how to make the file system in it; tmpfs needs no image.
const KINDS: [(&str, u64, Option<&str>); 3] = [
    ("tmpfs", 512 << 20, None),
    ("ext4", 512 << 20, Some("mkfs.ext4 -q -F")),
    ("xfs", 512 << 20, Some("mkfs.xfs -q -f")),
];

/// A mounted file system; unmounted when dropped.
struct Mount {
    point: PathBuf,
    image: PathBuf,
}

/// Runs the tests on each kind; answers how many tests passed, and which kinds this machine
/// refused, with the reason.
pub fn run() -> Result<(Count, Vec<String>)> {
    let mut count = Count::default();
    let mut refused = Vec::new();
    for (kind, bytes, make) in KINDS {
        match Mount::new(kind, bytes, make) {
            Ok(mount) => {
                println!("on {kind}:");
                let point = mount.point.to_string_lossy();
                count += testing::run_of(
                    "crates/file",
                    &["conformance", "tier", "restarts", "sharing"],
                    &[("TMPDIR", &*point)],
                )?;
            }
            Err(e) => refused.push(format!("{kind}: {e:#}")),
        }
    }
    Ok((count, refused))
}

/// Which of these kinds this machine does not mount, with the reason.
pub fn refused(kinds: &[&str]) -> Vec<String> {
    let wanted = KINDS.into_iter().filter(|(kind, ..)| kinds.contains(kind));
    wanted
        .filter_map(|(kind, bytes, make)| {
            Some(format!("{kind}: {:#}", Mount::new(kind, bytes, make).err()?))
        })
        .collect()
}

impl Mount {
    fn new(kind: &str, bytes: u64, make: Option<&str>) -> Result<Self> {
        let base = root().join("target/filesystems");
        let mount = Mount { point: base.join(kind), image: base.join(format!("{kind}.img")) };
        fs::create_dir_all(&mount.point).context("cannot make a mount point")?;
        let image = path(&mount.image);
        let point = path(&mount.point);
        match make {
            None => Cmd::new("mount -t tmpfs -o")
                .args([&format!("size={bytes}"), "tmpfs", point])
                .read()?,
            Some(make) => {
                File::create(&mount.image)?.set_len(bytes)?;
                Cmd::new(make).arg(image).read()?;
                Cmd::new("mount -o loop").args([image, point]).read()?
            }
        };
        Ok(mount)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Cmd::new("umount").arg(path(&self.point)).try_read();
        let _ = fs::remove_file(&self.image);
    }
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
