//! A tier, a GPU of the stand-ins, and chunks on it.
#![allow(dead_code)]

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{Ctx, Done, Key, Load, Loaded, Save, Saved, Tier};
use kvtier_disk::TierEncoding;
use kvtier_disk::kvtier_codec::{
    Aes256Gcm, Chain, Decoder, Keyring, MasterKey, Stage, stage_by_name,
};
use kvtier_fakegpu::{Fakes, Report};
use kvtier_gds::{GdsConfig, GdsTier};
use kvtier_mem::cuda::{Gpu, GpuEvent, GpuStream};
use kvtier_mem::{Arena, Lease};
use kvtier_testkit::Content;
use kvtier_testkit::conformance::{Fixture, Reach};

pub const MIB: usize = 1 << 20;

/// A chunk of several pieces and a last partial page.
pub const LEN: usize = MIB + 777;

/// Small pieces, little pinned memory, and a timeout that only a hang exceeds.
pub fn config(dir: &std::path::Path) -> GdsConfig {
    let mut config = GdsConfig::new(dir, 64 << 20);
    config.piece_bytes = 64 << 10;
    config.buffer_bytes = MIB;
    config.staging_bytes = 4 * MIB;
    config.open_timeout = Duration::from_secs(30);
    config
}

/// zstd, then encryption: every chunk is encoded, whatever its bytes.
pub fn encrypts(config: &mut GdsConfig) {
    let keys = Arc::new(Keyring::new());
    keys.insert(MasterKey::new(1, &[1; 32]).unwrap());
    let aes: Arc<dyn Stage> = Arc::new(Aes256Gcm::new(keys, 1));
    let chain = Chain::new(vec![stage_by_name("zstd").unwrap(), Arc::clone(&aes)]).unwrap();
    config.disk.encoding = Arc::new(TierEncoding::new(chain, Decoder::new().with_stage(aes)));
}

pub struct Bench {
    pub tier: GdsTier,
    pub gpu: Gpu,
    pub stream: GpuStream,
    pub arena: Arena,
    pub dir: tempfile::TempDir,
}

impl Bench {
    pub fn new() -> Self {
        Bench::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut GdsConfig)) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = config(dir.path());
        change(&mut config);
        let tier = GdsTier::open(config).unwrap();
        let gpu = Gpu::open(0).unwrap();
        let stream = gpu.stream().unwrap();
        let arena = Arena::device(&gpu, 16 * MIB).unwrap();
        Bench { tier, gpu, stream, arena, dir }
    }

    pub fn key(&self, n: u64) -> Key {
        Fixture::key_in(kvtier_core::Namespace::new("gds", kvtier_core::Digest::default()), n)
    }

    /// `len` bytes of the chunk `key` on the GPU.
    pub fn chunk(&self, key: &Key, len: usize) -> Lease {
        let mut bytes = vec![0; len];
        Content::of(key).write(0, &mut bytes);
        let mut lease = self.arena.lease(len).unwrap();
        self.stream.upload(&bytes, &mut lease, 0, || ()).unwrap();
        lease.assume_filled(len);
        lease
    }

    pub fn save_within(&self, time: Duration, key: &Key, chunk: Lease) -> Done<Save, Saved> {
        let save = Save { key: key.clone(), from: vec![chunk.freeze()] };
        self.tier.save(&Ctx::within(time), vec![save]).wait().pop().unwrap()
    }

    pub fn save(&self, key: &Key, chunk: Lease) -> Done<Save, Saved> {
        self.save_within(Duration::from_secs(600), key, chunk)
    }

    pub fn load_into(&self, key: &Key, into: Vec<Lease>) -> Done<Load, Loaded> {
        let load = Load { key: key.clone(), into };
        self.tier.load(&Ctx::within(Duration::from_secs(600)), vec![load]).wait().pop().unwrap()
    }

    pub fn load(&self, key: &Key, len: usize) -> Done<Load, Loaded> {
        self.load_into(key, vec![self.arena.lease(len).unwrap()])
    }

    /// Loads a stored chunk and checks every byte.
    pub fn prove(&self, key: &Key, len: usize) {
        let done = self.load(key, len);
        assert_eq!(done.result.unwrap(), Loaded::Hit { len: len as u64 });
        let mut bytes = vec![0; len];
        assert_eq!(done.op.into[0].init_len(), len);
        self.stream.download_lease(&done.op.into[0], 0, &mut bytes).unwrap();
        assert_eq!(Content::of(key).check(0, &bytes), Ok(()));
    }

    /// Saves a chunk, loads it and checks every byte.
    pub fn round_trip(&self, n: u64, len: usize) {
        let key = self.key(n);
        assert_eq!(self.save(&key, self.chunk(&key, len)).result.unwrap(), Saved::Stored);
        self.prove(&key, len);
    }

    pub fn counter(&self, name: &str) -> u64 {
        let status = kvtier_core::Observe::status(&self.tier);
        status
            .counters
            .iter()
            .find(|(own, _)| *own == name)
            .unwrap_or_else(|| panic!("no counter {name}"))
            .1
    }

    /// A bench on a machine with all prerequisites of cuFile.
    pub fn direct(change: impl FnOnce(&mut GdsConfig)) -> Self {
        let root = machine();
        let system_root = root.path().to_owned();
        let bench = Bench::with(|config| {
            config.system_root = system_root;
            config.gpu = Some(0);
            change(config);
        });
        drop(root);
        bench
    }

    pub fn reasons(&self) -> String {
        kvtier_core::Observe::status(&self.tier).reasons.join("\n")
    }

    /// The file of the only chunk.
    pub fn file(&self) -> std::path::PathBuf {
        let mut dirs = vec![self.dir.path().to_owned()];
        while let Some(dir) = dirs.pop() {
            for entry in std::fs::read_dir(dir).unwrap().map(Result::unwrap) {
                let name = entry.file_name().to_string_lossy().into_owned();
                let hidden = name.starts_with('.') || name.ends_with(".metadata");
                match entry.file_type().unwrap().is_dir() {
                    true if !hidden => dirs.push(entry.path()),
                    false if !hidden => return entry.path(),
                    _ => {}
                }
            }
        }
        panic!("no chunk in {}", self.dir.path().display());
    }
}

/// A root directory with the files that are checked before cuFile is used.
pub fn machine() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    for dir in ["proc", "run/udev/data"] {
        std::fs::create_dir_all(root.path().join(dir)).unwrap();
    }
    std::fs::write(root.path().join("proc/modules"), "nvidia_fs 1 0 - Live\n").unwrap();
    root
}

/// Places `dir` on a disk of that name, on the machine below `root`.
pub fn disk_of(dir: &std::path::Path, root: &std::path::Path, disk: &str) {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(dir).unwrap().dev();
    let blocks = root.join("sys/dev/block");
    let own = root.join("sys/devices").join(disk);
    [&blocks, &own].into_iter().for_each(|dir| std::fs::create_dir_all(dir).unwrap());
    let number = format!("{}:{}", nix::sys::stat::major(device), nix::sys::stat::minor(device));
    std::os::unix::fs::symlink(own, blocks.join(number)).unwrap();
}

/// Runs `body` over stand-ins in a child, and checks for leaks.
pub fn clean(name: &str, fakes: &Fakes, body: impl FnOnce()) {
    fakes.run(name, body, Report::assert_clean);
}

type Create = unsafe extern "C" fn(*mut usize, u32) -> i32;
type Set = unsafe extern "C" fn(u64, u8, usize, usize) -> i32;

/// The driver as the caller loaded it, and a stream of the caller.
pub struct ForeignStream {
    library: libloading::Library,
    stream: usize,
}

/// A stream of the caller, never destroyed, as those of PyTorch.
pub fn foreign_stream(gpu: &Gpu) -> ForeignStream {
    let _entered = gpu.enter().unwrap();
    let mut stream = 0;
    // SAFETY: the stand-in's library declares the function so.
    let library = unsafe { libloading::Library::new("libcuda.so.1") }.unwrap();
    // SAFETY: as above, and `stream` is valid for a write.
    assert_eq!(unsafe { library.get::<Create>("cuStreamCreate").unwrap()(&mut stream, 0) }, 0);
    ForeignStream { library, stream }
}

/// Sets memory on the caller's stream without waiting; returns an event after that.
pub fn set_later(gpu: &Gpu, caller: &ForeignStream, addr: usize, len: usize) -> GpuEvent {
    let ForeignStream { library, stream } = caller;
    let _entered = gpu.enter().unwrap();
    // SAFETY: the memory belongs to a lease that waits for the event.
    let set = unsafe { library.get::<Set>("cuMemsetD8Async") }.unwrap();
    for byte in [1, 2, 3, 0x5a] {
        // SAFETY: as above.
        assert_eq!(unsafe { set(addr as u64, byte, len, *stream) }, 0);
    }
    // SAFETY: the stream is alive.
    unsafe { gpu.event_after(*stream) }.unwrap()
}

/// Copies GPU memory for the suite.
struct Copies(Gpu);

impl Reach for Copies {
    fn write(&self, into: &mut Lease, bytes: &[u8]) {
        self.0.stream().unwrap().upload(bytes, into, 0, || ()).unwrap();
    }

    fn read(&self, from: &Lease) -> Vec<u8> {
        let mut bytes = vec![0; from.init_len()];
        self.0.stream().unwrap().download_lease(from, 0, &mut bytes).unwrap();
        bytes
    }
}

/// Gives the suite GPU memory.
pub fn device(fixture: Fixture) -> Fixture {
    let gpu = Gpu::open(0).unwrap();
    let arena = Arena::device(&gpu, 64 * MIB).unwrap();
    fixture.with_far_arena(arena, Copies(gpu))
}
