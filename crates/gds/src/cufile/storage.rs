//! The storage of a directory, and whether cuFile has direct transfers for it. A driver with direct
//! transfers for NVMe does not have them for every directory.
//!
//! libcufile can count the bytes of each data path (`cuFileGetStatsL3`), but that needs
//! `cuFileStatsStart`, whose thread writes to memory that `cuFileStatsStop` and the exit of the
//! process free. With version 1.15 on an H100, SIGSEGV killed 2 of 4 processes that stopped it, and
//! 7 of 10 that did not, at their exit. Therefore the counters stay off, and the storage is derived
//! from `/sys` and the file system.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::{major, minor};
use nix::sys::statfs::statfs;

/// The kinds of storage, by bit.
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

/// Network file systems of a known kind: magic number and name.
const NETWORK: [(i64, &str); 4] =
    [(0x0bd0_0bd0, "lustre"), (0x6969, "nfs"), (0x4750_4653, "gpfs"), (0x1983_0326, "beegfs")];
/// Block devices: prefix of their names, and their kinds. Virtual disks have none.
const DEVICES: [(&str, &[&str]); 7] = [
    ("nvme", &["nvme", "nvmeof", "nvme-p2p"]),
    ("sfdv", &["scaleflux"]),
    ("sd", &["scsi"]),
    ("vd", &[]),
    ("xvd", &[]),
    ("loop", &[]),
    ("zram", &[]),
];

/// Whether cuFile transfers to a directory's storage without host memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StorageReach {
    /// Direct transfers to this storage.
    Direct(String),
    /// Transfers go through host memory.
    Host(String),
    /// The kind of storage is unknown.
    Unknown,
}

/// Determines the storage of `dir`; `targets` has a bit for each of [`KINDS`] with direct transfers.
/// `root` contains `/sys`.
pub fn storage_of(root: &Path, dir: &Path, targets: u32) -> StorageReach {
    // A local file system has a device in `/sys`; network file systems have an anonymous one.
    let Some((name, kinds)) = block_devices(root, dir).or_else(|| network(dir)) else {
        return StorageReach::Unknown;
    };
    let is_direct = |kind: &&str| {
        KINDS.iter().position(|one| one == kind).is_some_and(|bit| targets >> bit & 1 == 1)
    };
    match kinds.iter().any(is_direct) {
        true => StorageReach::Direct(name),
        false => StorageReach::Host(name),
    }
}

fn network(dir: &Path) -> Option<(String, Vec<&'static str>)> {
    let magic = statfs(dir).ok()?.filesystem_type().0;
    let (_, kind) = NETWORK.iter().find(|(known, _)| *known == magic)?;
    Some(((*kind).to_owned(), vec![kind]))
}

/// The devices of a local file system, and the kinds that all of them have.
fn block_devices(root: &Path, dir: &Path) -> Option<(String, Vec<&'static str>)> {
    let device = fs::metadata(dir).ok()?.dev();
    let device =
        fs::canonicalize(root.join(format!("sys/dev/block/{}:{}", major(device), minor(device))))
            .ok()?;
    // The directory of a partition is inside that of its disk, whose name shows the kind.
    let disk = match device.join("partition").exists() {
        true => device.parent()?.to_owned(),
        false => device,
    };
    let disks = members(&disk);
    // An array is direct only if each of its disks is.
    let kinds = disks.iter().map(|disk| kinds_of(disk)).collect::<Option<Vec<_>>>()?;
    let of_all = |kind: &&&str| kinds.iter().all(|own| own.contains(*kind));
    let shared = kinds.first()?.iter().filter(of_all).copied().collect();
    let names: Vec<_> = disks
        .iter()
        .filter_map(|disk| Some(disk.file_name()?.to_string_lossy().into_owned()))
        .collect();
    Some((names.join(", "), shared))
}

/// The disks of an array (`md`), or the disk itself.
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
    DEVICES.iter().find(|(prefix, _)| name.starts_with(prefix)).map(|(_, kinds)| *kinds)
}

impl StorageReach {
    /// Describes a successful probe of this storage. `compat` allows transfers through host memory.
    ///
    /// # Errors
    /// The transfers go through host memory, and kvtier's own pinned memory is faster.
    pub fn judge(self, compat: bool) -> Result<String, String> {
        match self {
            StorageReach::Direct(storage) => Ok(format!("64 KiB written and read back; the directory is on {storage}")),
            StorageReach::Unknown => {
                Ok("64 KiB written and read back; it is unknown whether transfers to this storage are \
                 direct; see cufile.log"
                    .into())
            }
            StorageReach::Host(_) if compat => Ok("64 KiB written and read back through host memory, as configured".into()),
            StorageReach::Host(storage) => Err(format!(
                "the directory is on {storage}, to which cuFile has no direct transfers here: they would go through host memory, which is slower \
                 than kvtier's pinned memory"
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

    /// A machine where `dir` is on the device `disk`, or on its `partition` if that is not empty.
    fn machine(dir: &Path, disk: &str, partition: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = fs::metadata(dir).unwrap().dev();
        let blocks = root.path().join("sys/dev/block");
        let own = root.path().join("sys/devices").join(disk).join(partition);
        fs::create_dir_all(&own).unwrap();
        fs::create_dir_all(&blocks).unwrap();
        if !partition.is_empty() {
            fs::write(own.join("partition"), "1\n").unwrap();
        }
        symlink(own, blocks.join(format!("{}:{}", major(device), minor(device)))).unwrap();
        root
    }

    fn storage_on(disk: &str, partition: &str) -> StorageReach {
        let dir = tempfile::tempdir().unwrap();
        storage_of(machine(dir.path(), disk, partition).path(), dir.path(), NVME)
    }

    #[test]
    fn disks_and_partitions_have_the_kind_of_their_device() {
        assert_eq!(storage_on("nvme0n1", "nvme0n1p2"), StorageReach::Direct("nvme0n1".into()));
        assert_eq!(storage_on("nvme0n1", ""), StorageReach::Direct("nvme0n1".into()));
        assert_eq!(storage_on("sda", "sda1"), StorageReach::Host("sda".into()));
        assert_eq!(storage_on("vda", ""), StorageReach::Host("vda".into()));
        assert_eq!(
            storage_on("dm-0", ""),
            StorageReach::Unknown,
            "the devices of a mapping are not resolved"
        );
    }

    #[test]
    fn an_array_has_the_kinds_of_all_its_disks() {
        for (second, expected) in [
            ("nvme1n1", StorageReach::Direct("nvme0n1, nvme1n1".into())),
            ("sda", StorageReach::Host("nvme0n1, sda".into())),
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
            let mut found = storage_of(root.path(), dir.path(), NVME);
            // Directories are listed in any order.
            if let StorageReach::Direct(names) | StorageReach::Host(names) = &mut found {
                let mut sorted: Vec<_> = names.split(", ").map(str::to_owned).collect();
                sorted.sort();
                *names = sorted.join(", ");
            }
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn storage_without_a_device_in_sys_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(storage_of(Path::new("/nowhere"), dir.path(), NVME), StorageReach::Unknown);
    }
}
