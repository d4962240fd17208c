//! Whole chunks as bytes, for callers that block.

use std::sync::Arc;
use std::time::Duration;

use kvtier_core::{
    Ctx, Done, Error, ErrorKind, Hold, Key, Load, Loaded, MissReason, Mode, Presence, Save, Saved,
    ShedReason, Tier,
};
use kvtier_mem::{Arena, ArenaConfig, View};

/// The deadline of every call.
const TIMEOUT: Duration = Duration::from_secs(30);

/// How often a load is repeated because another caller saved the key with another length meanwhile.
const LENGTH_CHANGES_MAX: usize = 8;

/// The pause before a call that was refused is repeated.
const RETRY_PAUSE: Duration = Duration::from_millis(1);

/// How often a lookup is repeated because a tier below failed to answer it.
const UNKNOWN_MAX: usize = 8;

/// Saves and loads whole chunks as bytes, and blocks until the tier has answered or 30 s are over.
/// Every tier has it.
///
/// A load copies its bytes once more than [`Tier::load`] into memory of the caller, and looks the
/// key up first. Programs that move many gigabytes a second use batches of leases and views.
///
/// ```
/// use kvtier::{Blocking, HostConfig, HostTier, Key, Namespace};
///
/// let tier = HostTier::open(HostConfig::new(16 << 20))?;
/// let ns = Namespace::from_name("llama-3-8b bf16, 256 tokens");
/// let key = Key::from_name(&ns, "prompt 7, chunk 0");
/// tier.save_bytes(&key, vec![42; 4096])?;
/// assert_eq!(tier.load_bytes(&key)?, Some(vec![42; 4096]));
/// assert!(tier.remove_key(&key)? && !tier.contains(&key)?);
/// # Ok::<(), kvtier::core::Error>(())
/// ```
pub trait Blocking: Tier {
    /// Saves bytes under a key: a `Vec<u8>`, a `Bytes`, a `&'static [u8]` or any other owner. A tier
    /// may decline to store them ([`Saved::Shed`]); a cache is complete without them.
    ///
    /// # Errors
    /// `Invalid` for no bytes or a length that the namespace excludes, `Timeout`, `Closed`, and
    /// errors of the medium.
    fn save_bytes(
        &self,
        key: &Key,
        bytes: impl AsRef<[u8]> + Send + Sync + 'static,
    ) -> Result<Saved, Error> {
        let ctx = Ctx::within(TIMEOUT);
        // The view owns the bytes: the tier may keep reading after a timeout, without a copy and
        // without a lifetime.
        let view = View::from_owner(bytes);
        loop {
            let op = Save { key: key.clone(), from: vec![view.clone()] };
            match only(self.save(&ctx, vec![op]).wait())? {
                Saved::Shed(ShedReason::Throttled) => {
                    self.ready(&ctx).wait()?;
                    // A tier may be at a limit that `ready` does not wait for.
                    std::thread::sleep(RETRY_PAUSE);
                }
                answer => return Ok(answer),
            }
        }
    }

    /// The bytes of a key; `None` if the tier does not have them or they are corrupt.
    ///
    /// # Errors
    /// `Timeout`, `Closed`, `Full` if there is no memory for the bytes, and errors of the medium.
    fn load_bytes(&self, key: &Key) -> Result<Option<Vec<u8>>, Error> {
        let ctx = Ctx::within(TIMEOUT);
        // A load needs memory of the chunk's length, which only a lookup returns.
        for _ in 0..LENGTH_CHANGES_MAX {
            let Some(len) = find(self, &ctx, key)? else { return Ok(None) };
            match load(self, &ctx, key, len)? {
                Outcome::Bytes(bytes) => return Ok(Some(bytes)),
                Outcome::Miss => return Ok(None),
                Outcome::OtherLength => {}
            }
        }
        Ok(None)
    }

    /// Whether the tier has a key.
    ///
    /// # Errors
    /// `Timeout`, `Closed`, and errors of the medium.
    fn contains(&self, key: &Key) -> Result<bool, Error> {
        Ok(find(self, &Ctx::within(TIMEOUT), key)?.is_some())
    }

    /// Removes a key; returns whether there was something to remove. A held chunk stays.
    ///
    /// # Errors
    /// `Timeout`, `Closed`, and errors of the medium.
    fn remove_key(&self, key: &Key) -> Result<bool, Error> {
        let ctx = Ctx::within(TIMEOUT);
        loop {
            match self.remove(&ctx, [key.clone()].into()).wait() {
                Err(e) if e.kind() == ErrorKind::Throttled => self.ready(&ctx).wait()?,
                answer => return Ok(answer?.removed > 0),
            }
        }
    }
}

impl<T: Tier + ?Sized> Blocking for T {}

/// What a load of a chunk of known length found.
enum Outcome {
    Bytes(Vec<u8>),
    Miss,
    OtherLength,
}

/// The length of the chunk of a key.
fn find(tier: &(impl Tier + ?Sized), ctx: &Ctx, key: &Key) -> Result<Option<u64>, Error> {
    let keys: Arc<[Key]> = [key.clone()].into();
    let mut unknown = 0;
    while unknown < UNKNOWN_MAX {
        match tier.lookup(ctx, Arc::clone(&keys), Mode::Each, Hold::None).wait() {
            Err(e) if e.kind() == ErrorKind::Throttled => {}
            Err(e) => return Err(e),
            Ok(answer) => match answer.found.first() {
                Some(Presence::Hit { len }) => return Ok(Some(*len)),
                // The tier may answer once it has asked its medium again, so a few more lookups are
                // worth it. `ready` below keeps the pace.
                Some(Presence::Unknown) => unknown += 1,
                _ => return Ok(None),
            },
        }
        tier.ready(ctx).wait()?;
    }
    let what = "the tier cannot say whether it has the key; see its status";
    Err(Error::new(ErrorKind::Io, what).with_op("lookup").with_key(*key.digest()))
}

fn load(tier: &(impl Tier + ?Sized), ctx: &Ctx, key: &Key, len: u64) -> Result<Outcome, Error> {
    let too_long = |_| Error::new(ErrorKind::Full, "the chunk is longer than memory can be");
    let len = usize::try_from(len).map_err(too_long)?;
    let no_memory = |e| Error::new(ErrorKind::Full, "no memory for the chunk").with_source(e);
    // Memory of its own for this one chunk: ordinary heap, which costs no huge page and no
    // registration.
    let arena = Arena::new(ArenaConfig::heap(len)).map_err(no_memory)?;
    loop {
        // A new lease in each round: the answer to a throttled load may have come without its
        // memory.
        let lease = arena.lease(len).map_err(no_memory)?;
        let Done { op, result } =
            single(tier.load(ctx, vec![Load { key: key.clone(), into: vec![lease] }]).wait());
        return match result? {
            Loaded::Hit { len } => {
                let bytes = op.into.first().and_then(|lease| lease.as_host()).unwrap_or_default();
                let hit = usize::try_from(len).ok().and_then(|len| bytes.get(..len));
                Ok(hit.map_or(Outcome::OtherLength, |hit| Outcome::Bytes(hit.to_vec())))
            }
            Loaded::Miss(MissReason::Length) => Ok(Outcome::OtherLength),
            Loaded::Throttled => {
                tier.ready(ctx).wait()?;
                continue;
            }
            _ => Ok(Outcome::Miss),
        };
    }
}

fn only<O, T>(answers: Vec<Done<O, T>>) -> Result<T, Error> {
    single(answers).result
}

fn single<O, T>(mut answers: Vec<Done<O, T>>) -> Done<O, T> {
    answers.pop().expect("a batch of one has one answer")
}
