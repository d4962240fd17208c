use kvtier_core::{Error, ErrorKind};
use kvtier_mem::{Arena, Lease};

use crate::direct_io::PAGE;
use crate::mover::Part;

/// The path of one load's payload into the caller's leases: which parts are read directly, and what
/// is copied afterwards. The whole pages come first, then the page pair [last partial page |
/// footer].
#[derive(Debug)]
pub struct LoadBuffers {
    /// The caller's leases that are no parts of the transfer, in their order.
    kept: Vec<KeptLease>,
    /// How many of the transfer's parts before the page pair are the caller's leases. With 0, the
    /// part before the page pair is bounce memory.
    direct: usize,
    len: usize,
}

/// A lease of the caller's into which nothing is read directly.
#[derive(Debug)]
struct KeptLease {
    /// Its position among the caller's leases.
    position: usize,
    lease: Lease,
}

/// Memory for payloads whose own memory is not aligned.
#[derive(Clone, Copy, Debug)]
pub struct BounceMemory<'a> {
    pub arena: &'a Arena,
    /// All of its bytes, used or not.
    pub bytes: usize,
}

/// A load that cannot be planned.
#[derive(Debug)]
pub struct NoBuffers {
    /// The caller's leases.
    pub leases: Vec<Lease>,
    /// Why the load can never be planned; `None` where bounce memory is in use by others now.
    pub error: Option<Error>,
}

/// The memory of a finished transfer.
#[derive(Debug)]
pub struct LoadMemory {
    /// The caller's leases, in the caller's order.
    pub leases: Vec<Lease>,
    pub bounce: Option<Lease>,
    /// The last partial page of the payload, and the footer.
    pub page_pair: Option<Lease>,
}

impl LoadBuffers {
    /// Plans a load of `len` bytes into `leases`, which are long enough together, and `tail`. Takes
    /// bounce memory where the leases are not aligned.
    ///
    /// # Errors
    /// Bounce memory is needed, and there is none now or never enough.
    pub fn plan(
        leases: Vec<Lease>,
        len: usize,
        bounce: BounceMemory<'_>,
        tail: Lease,
    ) -> Result<(Self, Vec<Part>), NoBuffers> {
        let whole = len - len % PAGE as usize;
        let mut parts = Vec::with_capacity(2);
        let far = leases.iter().any(|lease| !lease.place().is_host());
        let buffers = if far {
            parts.extend(far_parts(leases, whole));
            LoadBuffers { kept: Vec::new(), direct: parts.len(), len }
        } else if is_aligned(&leases, whole) {
            let mut at = 0;
            let mut kept = Vec::new();
            for (position, into) in leases.into_iter().enumerate() {
                // Of the last leases nothing may be read directly: they get the partial page, or
                // lie behind the payload.
                let n = into.len().min(whole - at);
                if n == 0 {
                    kept.push(KeptLease { position, lease: into });
                } else {
                    parts.push(Part::Read { at: at as u64, into, len: n });
                    at += n;
                }
            }
            LoadBuffers { kept, direct: parts.len(), len }
        } else {
            // More than all bounce memory together: to wait would be for ever.
            if whole > bounce.bytes {
                let error = Error::new(ErrorKind::Invalid, not_aligned(bounce.bytes));
                return Err(NoBuffers { leases, error: Some(error) });
            }
            match bounce.arena.lease(whole) {
                Ok(into) => parts.push(Part::Read { at: 0, into, len: whole }),
                Err(_) => return Err(NoBuffers { leases, error: None }),
            }
            let kept = leases
                .into_iter()
                .enumerate()
                .map(|(position, lease)| KeptLease { position, lease })
                .collect();
            LoadBuffers { kept, direct: 0, len }
        };
        let pair = PAGE as usize + if len > whole { PAGE as usize } else { 0 };
        // The pair ends with the footer, or in a foreign layout holds the payload's end alone.
        parts.push(Part::Read { at: whole as u64, into: tail, len: pair });
        Ok((buffers, parts))
    }

    /// Takes the memory out of the transfer's parts.
    pub fn unpack(self, parts: Vec<Part>) -> LoadMemory {
        let mut leases: Vec<Lease> = parts
            .into_iter()
            .filter_map(|part| match part {
                Part::Read { into, .. } => Some(into),
                Part::Write { .. } => None,
            })
            .collect();
        let page_pair = leases.pop();
        let bounce = if self.direct == 0 { leases.pop() } else { None };
        // In ascending order of positions, so that each index is right when it is used.
        self.kept
            .into_iter()
            .for_each(|kept| leases.insert(kept.position.min(leases.len()), kept.lease));
        LoadMemory { leases, bounce, page_pair }
    }

    /// Whether the payload's whole pages pass through bounce memory.
    pub fn is_bounced(&self) -> bool {
        self.direct == 0 && self.len >= PAGE as usize
    }
}

/// The reads of the first `whole` bytes into memory that the CPU cannot reach, of any alignment.
/// Leases into which nothing is read are part of the transfer too, since the mover may have to wait
/// for them.
fn far_parts(leases: Vec<Lease>, whole: usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    leases.into_iter().map(move |into| {
        let from = at;
        let len = into.len().min(whole - at);
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

/// Copies `bytes`, which begin at `at` of the payload, to their places in the leases, by `write`.
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

/// The error text for unaligned memory that is larger than all bounce memory.
pub fn not_aligned(bounce_bytes: usize) -> String {
    let page = PAGE;
    format!(
        "memory not aligned to {page} bytes, and more than the {bounce_bytes} bytes of bounce memory; align it or raise bounce_bytes"
    )
}
