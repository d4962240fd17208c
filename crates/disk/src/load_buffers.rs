use kvtier_core::{Error, ErrorKind};
use kvtier_mem::{Arena, Lease};

use crate::mover::Part;
use crate::name::PAGE;
use crate::save::not_aligned;

/// How the payload of one load reaches the caller's leases: which parts are read directly, and what
/// is copied afterwards. The whole pages come first, then the page pair [last partial page |
/// footer].
#[derive(Debug)]
pub struct LoadBuffers {
    /// The caller's leases that are no parts of the transfer, in their order.
    kept: Vec<Kept>,
    /// How many of the transfer's parts before the page pair are the caller's leases; otherwise
    /// the one before it is bounce memory.
    direct: usize,
    len: usize,
}

/// A lease of the caller's into which nothing is read directly.
#[derive(Debug)]
struct Kept {
    /// Its place among the caller's.
    position: usize,
    lease: Lease,
}

impl LoadBuffers {
    /// Plans a load of `len` bytes into `leases` (long enough together) and `tail`. Bounce memory
    /// is taken when the leases' own is not aligned. Gives the leases back when there is none
    /// now, with an error when there is never enough.
    pub fn plan(
        leases: Vec<Lease>,
        len: usize,
        (bounce, bounce_bytes): (&Arena, usize),
        tail: Lease,
    ) -> Result<(Self, Vec<Part>), (Vec<Lease>, Option<Error>)> {
        let whole = len - len % PAGE as usize;
        let mut parts = Vec::with_capacity(2);
        let far = leases.iter().any(|lease| !lease.place().is_host());
        let buffers = if far {
            parts.extend(far_parts(leases, whole));
            LoadBuffers { kept: Vec::new(), direct: parts.len(), len }
        } else if is_aligned(&leases, whole) {
            let (mut at, mut kept) = (0, Vec::new());
            for (position, into) in leases.into_iter().enumerate() {
                let n = into.len().min(whole - at);
                if n == 0 {
                    kept.push(Kept { position, lease: into });
                } else {
                    parts.push(Part::Read { at: at as u64, into, len: n });
                    at += n;
                }
            }
            LoadBuffers { kept, direct: parts.len(), len }
        } else {
            if whole > bounce_bytes {
                return Err((
                    leases,
                    Some(Error::new(ErrorKind::Invalid, not_aligned(bounce_bytes))),
                ));
            }
            match bounce.lease(whole) {
                Ok(into) => parts.push(Part::Read { at: 0, into, len: whole }),
                Err(_) => return Err((leases, None)),
            }
            let kept = leases
                .into_iter()
                .enumerate()
                .map(|(position, lease)| Kept { position, lease })
                .collect();
            LoadBuffers { kept, direct: 0, len }
        };
        let pair = PAGE as usize + if len > whole { PAGE as usize } else { 0 };
        parts.push(Part::Read { at: whole as u64, into: tail, len: pair });
        Ok((buffers, parts))
    }

    /// Takes the parts back and gives (the caller's leases in the caller's order, bounce memory if
    /// any, the page pair).
    pub fn unpack(self, parts: Vec<Part>) -> (Vec<Lease>, Option<Lease>, Option<Lease>) {
        let mut memory: Vec<Lease> = parts
            .into_iter()
            .filter_map(|part| match part {
                Part::Read { into, .. } => Some(into),
                Part::Write { .. } => None,
            })
            .collect();
        let tail = memory.pop();
        let bounced = if self.direct == 0 { memory.pop() } else { None };
        // In ascending order, each finds all that come before it in place.
        self.kept
            .into_iter()
            .for_each(|kept| memory.insert(kept.position.min(memory.len()), kept.lease));
        (memory, bounced, tail)
    }

    /// Whether the payload's whole pages pass through bounce memory.
    pub fn is_bounced(&self) -> bool {
        self.direct == 0 && self.len >= PAGE as usize
    }
}

/// The first `whole` bytes into memory that the CPU cannot reach, of whatever alignment. What
/// nothing is read into is part of the transfer too: it may be waited for.
fn far_parts(leases: Vec<Lease>, whole: usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    leases.into_iter().map(move |into| {
        let (from, len) = (at, into.len().min(whole - at));
        at += len;
        Part::Read { at: from as u64, into, len }
    })
}

/// Whether the first `whole` bytes (whole pages) can be read straight into these leases.
fn is_aligned(leases: &[Lease], whole: usize) -> bool {
    let page = PAGE as usize;
    let mut at = 0;
    leases.iter().all(|lease| {
        let n = lease.len().min(whole - at);
        at += n;
        n == 0 || (lease.addr().is_multiple_of(page) && (n.is_multiple_of(page)))
    })
}

/// Copies `bytes`, which begin at `at` of the payload, to where they belong in the leases, by
/// `write`.
pub fn scatter<E>(
    leases: &mut [Lease],
    mut at: usize,
    mut bytes: &[u8],
    write: impl Fn(&mut Lease, usize, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    for lease in leases {
        if bytes.is_empty() {
            break;
        }
        if at >= lease.len() {
            at -= lease.len();
            continue;
        }
        let n = bytes.len().min(lease.len() - at);
        write(lease, at, &bytes[..n])?;
        bytes = &bytes[n..];
        at = 0;
    }
    Ok(())
}
