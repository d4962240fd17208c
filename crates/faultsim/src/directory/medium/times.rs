//! Times of files and directories: virtual ones, where the host would set its own.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

use kvtier_os::simulated::Call;
use nix::fcntl::AT_FDCWD;
use nix::sys::stat::{UtimensatFlags, futimens, utimensat};
use nix::sys::time::TimeSpec;

use super::paths::Paths;
use crate::world::{EPOCH_S, World};

/// In no run the time of day is farther from the start of a run.
const FROM_START_MAX_S: u64 = 30 * 24 * 3600;

/// Sets a file's time of the last write to virtual time.
pub fn set_time(file: BorrowedFd<'_>, world: &World) {
    let _ = futimens(file, &TimeSpec::UTIME_OMIT, &now(world));
}

/// The same for a directory.
pub fn set_dir_time(dir: &Path, world: &World) {
    let (access, follow) = (TimeSpec::UTIME_OMIT, UtimensatFlags::FollowSymlink);
    let _ = utimensat(AT_FDCWD, dir, &access, &now(world), follow);
}

/// A call that changed names changed the time of their directories.
pub fn set_dir_times(root: &Path, call: Call<'_>, paths: &Paths, world: &World) {
    let set = |path: &Path| {
        if let Some(dir) = path.parent() {
            set_dir_time(&root.join(dir), world);
        }
    };
    match (call, paths) {
        (Call::CreateDir(_) | Call::Remove(_) | Call::RemoveTree(_), Paths::One(Some(path))) => {
            set(path);
        }
        (_, Paths::Two(from, to)) => from.iter().chain(to).for_each(|path| set(path)),
        _ => {}
    }
}

/// Whether this time of the last write of a file is not one of the run.
pub fn is_of_host(written_s: i64) -> bool {
    let run = EPOCH_S - FROM_START_MAX_S..EPOCH_S + FROM_START_MAX_S;
    !run.contains(&written_s.cast_unsigned())
}

fn now(world: &World) -> TimeSpec {
    let since: Duration = world.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    TimeSpec::from_duration(since)
}
