//! The calls of the operating system that a directory tier makes where their order, their failure
//! or a crash matters.
//!
//! Without features each function is the call itself. With the feature `simulate` a thread can be a
//! simulated process, which sees each call before it is made and how it ended.
//!
//! ```
//! let dir = std::env::temp_dir().join(format!("kvtier-os-{}", std::process::id()));
//! kvtier_os::create_dir(&dir)?;
//! kvtier_os::remove_dir(&dir)?;
//! # Ok::<(), std::io::Error>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod at;
mod attributes;
mod call;
mod files;
mod identity;
mod list;
mod observe;
mod paths;
mod process;
#[cfg(feature = "simulate")]
pub mod simulated;

pub use at::{fstatat, openat, renameat, renameat2, unlinkat};
pub use attributes::{attribute, attribute_at, set_attribute};
pub use call::Call;
pub use files::{
    fallocate, fdatasync, ftruncate, read_at_least, set_len, sync_all, sync_data, syncfs, try_lock,
    write, write_all, write_all_at,
};
pub use identity::Identity;
pub use list::{ListedName, list_dir_at, read_dir};
pub use paths::{
    create_dir, create_dir_all, create_dir_mode, hard_link, open, remove_dir, remove_dir_all,
    remove_file, rename, rename_exchange, rename_noreplace, sizes,
};
pub use process::{identity, is_simulated, later, now, random_bytes, sleep, wall};
