//! Which storage a directory lies on, and whether cuFile's driver reaches it directly: a driver
//! that reaches NVMe need not reach this directory.
//!
//! libcufile could count which way bytes went (`cuFileGetStatsL3`), but counting needs
//! `cuFileStatsStart`, whose thread writes to what `cuFileStatsStop` and the end of the process
//! free: with version 1.15 on an H100 processes were killed by SIGSEGV in 2 of 4 runs that stopped
//! it, and in 7 of 10 that did not, when they ended. So the counters are never switched on, and the
//! kernel is asked what lies below.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use nix::sys::statfs::statfs;

/// The kinds of storage that a driver may reach, by bit.
pub const KINDS: [&str; 14] = [
    "lustre",
    "weka",
    "nfs",
    "gpfs",
    "nvme",
    "nvmeof",
    "scsi",
    "scaleflux",
    "nvmesh",
    "beegfs",
    "yrcloudfile",
    "nvme-p2p",
    "scatefs",
    "virtiofs",
];

/// Network file systems whose kind is known: magic number and name.
const NETWORK: [(i64, &str); 4] =
    [(0x0bd0_0bd0, "lustre"), (0x6969, "nfs"), (0x4750_4653, "gpfs"), (0x1983_0326, "beegfs")];
/// Block devices: how their names begin, and the kinds that they are. Virtual disks are of none.
const DEVICES: [(&str, &[&str]); 7] = [
    ("nvme", &["nvme", "nvmeof", "nvme-p2p"]),
    ("sfdv", &["scaleflux"]),
    ("sd", &["scsi"]),
    ("vd", &[]),
    ("xvd", &[]),
    ("loop", &[]),
    ("zram", &[]),
];

/// Whether the driver reaches a directory's storage without going through host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reach {
    /// It reaches this kind directly.
    Direct(String),
    /// It does not reach this kind.
    Host(String),
    /// This kind is not known here.
    Unknown,
}

/// Looks at what lies below `dir`; `targets` has a bit for each of [`KINDS`] that the driver
/// reaches. `root` is where `/sys` is looked for.
pub fn reach(root: &Path, dir: &Path, targets: u32) -> Reach {
    let Some((name, kinds)) = block_devices(root, dir).or_else(|| network(dir)) else {
        return Reach::Unknown;
    };
    let is_reached = |kind: &&str| {
        KINDS.iter().position(|one| one == kind).is_some_and(|bit| targets >> bit & 1 == 1)
    };
    match kinds.iter().any(is_reached) {
        true => Reach::Direct(name),
        false => Reach::Host(name),
    }
}

fn network(dir: &Path) -> Option<(String, Vec<&'static str>)> {
    let magic = statfs(dir).ok()?.filesystem_type().0;
    let (_, kind) = NETWORK.iter().find(|(known, _)| *known == magic)?;
    Some(((*kind).to_owned(), vec![kind]))
}

/// The devices that a local file system lies on, and the kinds that all of them are.
fn block_devices(root: &Path, dir: &Path) -> Option<(String, Vec<&'static str>)> {
    let device = fs::metadata(dir).ok()?.dev();
    let device =
        fs::canonicalize(root.join(format!("sys/dev/block/{}:{}", major(device), minor(device))))
            .ok()?;
    let disk = match device.join("partition").exists() {
        true => device.parent()?.to_owned(),
        false => device,
    };
    let disks = members(&disk);
    let kinds = disks.iter().map(|disk| kinds_of(disk)).collect::<Option<Vec<_>>>()?;
    let of_all = |kind: &&&str| kinds.iter().all(|own| own.contains(*kind));
    let shared = kinds.first()?.iter().filter(of_all).copied().collect();
    let names: Vec<_> = disks
        .iter()
        .filter_map(|disk| Some(disk.file_name()?.to_string_lossy().into_owned()))
        .collect();
    Some((names.join(", "), shared))
}

/// The disks of an array of disks (`md`), or the disk itself.
fn members(disk: &Path) -> Vec<PathBuf> {
    let is_array = disk.file_name().is_some_and(|name| name.to_string_lossy().starts_with("md"));
    let links =
        fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten().filter(|_| is_array);
    let disk_of = |link: fs::DirEntry| {
        let device = fs::canonicalize(link.path()).ok()?;
        if device.join("partition").exists() {
            device.parent().map(Path::to_owned)
        } else {
            Some(device)
        }
    };
    let found: Vec<_> = links.filter_map(disk_of).collect();
    if found.is_empty() { vec![disk.to_owned()] } else { found }
}

fn kinds_of(disk: &Path) -> Option<&'static [&'static str]> {
    let name = disk.file_name()?.to_string_lossy().into_owned();
    DEVICES.iter().find(|(begins, _)| name.starts_with(begins)).map(|(_, kinds)| *kinds)
}

impl Reach {
    /// What a probe of this directory is worth, in words; an error where host memory of our own is
    /// faster. `compat` allows that all the same.
    pub fn judge(self, compat: bool) -> Result<String, String> {
        match self {
            Reach::Direct(storage) => Ok(format!("64 KiB written and read back; the directory lies on {storage}")),
            Reach::Unknown => {
                Ok("64 KiB written and read back; whether this storage is reached directly is not known \
                 here: cufile.log says it"
                    .into())
            }
            Reach::Host(_) if compat => Ok("64 KiB written and read back through host memory, as configured".into()),
            Reach::Host(storage) => Err(format!(
                "the directory lies on {storage}, which cuFile does not reach directly here: it would go through host memory, which is slower than \
                 pinned memory of our own"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The bit of nvme.
    const NVME: u32 = 1 << 4;

    /// A machine on whose device `dir` lies, named `disk`; `partition` of it if that is not empty.
    fn machine(dir: &Path, disk: &str, partition: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = fs::metadata(dir).unwrap().dev();
        let (blocks, own) = (
            root.path().join("sys/dev/block"),
            root.path().join("sys/devices").join(disk).join(partition),
        );
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(&blocks).unwrap();
        if !partition.is_empty() {
            fs::write(own.join("partition"), "1\n").unwrap();
        }
        symlink(own, blocks.join(format!("{}:{}", major(device), minor(device)))).unwrap();
        root
    }

    fn reached(disk: &str, partition: &str) -> Reach {
        let dir = tempfile::tempdir().unwrap();
        reach(machine(dir.path(), disk, partition).path(), dir.path(), NVME)
    }

    #[test]
    fn disks_and_their_partitions_are_told_apart_by_kind() {
        assert_eq!(reached("nvme0n1", "nvme0n1p2"), Reach::Direct("nvme0n1".into()));
        assert_eq!(reached("nvme0n1", ""), Reach::Direct("nvme0n1".into()));
        assert_eq!(reached("sda", "sda1"), Reach::Host("sda".into()));
        assert_eq!(reached("vda", ""), Reach::Host("vda".into()));
        assert_eq!(
            reached("dm-0", ""),
            Reach::Unknown,
            "what lies below a mapping is not looked for"
        );
    }

    #[test]
    fn an_array_is_what_all_its_disks_are() {
        for (second, expected) in [
            ("nvme1n1", Reach::Direct("nvme0n1, nvme1n1".into())),
            ("sda", Reach::Host("nvme0n1, sda".into())),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let root = machine(dir.path(), "md0", "");
            let slaves = root.path().join("sys/devices/md0/slaves");
            fs::create_dir_all(&slaves).unwrap();
            for disk in ["nvme0n1", second] {
                let device = root.path().join("sys/devices").join(disk);
                fs::create_dir_all(&device).unwrap();
                symlink(device, slaves.join(disk)).unwrap();
            }
            let mut found = reach(root.path(), dir.path(), NVME);
            // Folders are listed in any order.
            if let Reach::Direct(names) | Reach::Host(names) = &mut found {
                let mut sorted: Vec<_> = names.split(", ").map(str::to_owned).collect();
                sorted.sort();
                *names = sorted.join(", ");
            }
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_the_kernel_does_not_say_is_not_known() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(reach(Path::new("/nowhere"), dir.path(), NVME), Reach::Unknown);
    }
}
