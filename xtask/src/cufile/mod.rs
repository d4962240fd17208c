//! NVIDIA's own libcufile, out of its Python package, in compatibility mode over the stand-in for
//! the driver.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::sh::Cmd;
use crate::testing::{self, Count};
use crate::venv::{self, Venv};
use crate::versions::CUFILE;
use crate::workspace;

const WHEEL: Venv = Venv { name: "cufile", packages: &[CUFILE], alone: true };
const SHIM: &str = include_str!("modules.c");

/// Runs the GPU tier's suite over it; or says why not.
pub fn test() -> Result<Result<Count, String>> {
    let library = match library() {
        Ok(library) => library,
        Err(e) => return Ok(Err(format!("the Python package {CUFILE} cannot be had: {e:#}"))),
    };
    let mut env = vec![("KVTIER_CUFILE", text(&library))];
    if !Path::new("/proc/modules").exists() {
        match shim() {
            Ok(shim) => env.push(("KVTIER_CUFILE_PRELOAD", text(&shim))),
            Err(e) => {
                return Ok(Err(format!(
                    "there is no /proc/modules, and no C compiler to work around it: {e:#}"
                )));
            }
        }
    }
    if !Path::new("/run/udev/data").exists() {
        // Without udev it classifies no file system on a device, and takes one in memory as it is.
        if !Path::new("/dev/shm").exists() {
            return Ok(Err("there is neither /run/udev nor a file system in memory".into()));
        }
        env.push(("TMPDIR", "/dev/shm".into()));
    }
    let env: Vec<_> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    testing::run_of("crates/gds", &["real_cufile"], &env).map(Ok)
}

/// The library in its environment, which is made now if it was not before.
fn library() -> Result<PathBuf> {
    let venv = venv::make(&WHEEL)?.join("venv/lib");
    find(&venv, "libcufile.so.0")
        .with_context(|| format!("no libcufile.so.0 below {}", venv.display()))
}

fn find(dir: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> =
        fs::read_dir(dir).ok()?.flatten().map(|entry| entry.path()).collect();
    let here = entries.iter().find(|path| path.file_name().is_some_and(|own| own == name));
    here.cloned()
        .or_else(|| entries.iter().filter(|path| path.is_dir()).find_map(|dir| find(dir, name)))
}

/// What makes it open where the kernel has no modules.
fn shim() -> Result<PathBuf> {
    let dir = workspace::target_dir().join("cufile");
    fs::create_dir_all(&dir)?;
    let source = dir.join("modules.c");
    let built = dir.join("libmodules.so");
    fs::write(&source, SHIM)?;
    Cmd::new("cc -shared -fPIC -O1 -o").arg(text(&built)).arg(text(&source)).arg("-ldl").read()?;
    Ok(built)
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}
