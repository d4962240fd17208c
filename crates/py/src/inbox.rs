//! Where ends of work arrive: futures that can go on, and a descriptor that says so to whoever
//! polls.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use nix::sys::eventfd::{EfdFlags, EventFd};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Work that is under way. It has no thread: the tiers' threads wake it, and it goes on when the
/// caller, who was told through the descriptor, drains it.
pub struct Inbox<T> {
    bell: Arc<Bell>,
    work: Mutex<Running<T>>,
}

struct Running<T> {
    last_id: u64,
    by_id: HashMap<u64, Work<T>>,
    ended: Vec<(u64, T)>,
}

/// Rings once for all that comes until it is listened to.
struct Bell {
    fd: EventFd,
    /// Another descriptor of the same. Others have its number, and may have closed it: then the
    /// number is that of some other file by now, which is nothing for us to write to, nor to
    /// close.
    shown: RawFd,
    rung: Mutex<Rung>,
}

#[derive(Default)]
struct Rung {
    is_rung: bool,
    ids: Vec<u64>,
}

struct Call {
    id: u64,
    bell: Arc<Bell>,
}

impl Wake for Call {
    fn wake(self: Arc<Self>) {
        self.bell.ring(Some(self.id));
    }
}

impl Bell {
    fn new() -> std::io::Result<Self> {
        let fd = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let shown = fd.as_fd().try_clone_to_owned()?.into_raw_fd();
        Ok(Bell { fd, shown, rung: Mutex::default() })
    }

    fn ring(&self, id: Option<u64>) {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        rung.ids.extend(id);
        if !std::mem::replace(&mut rung.is_rung, true) {
            // It fails only when it is rung already, 2^64 times.
            let _ = self.fd.write(1);
        }
    }

    fn listen(&self) -> Vec<u64> {
        let mut rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut rung.is_rung) {
            let _ = self.fd.read();
        }
        std::mem::take(&mut rung.ids)
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let own = counter(self.fd.as_fd().as_raw_fd());
        if own.is_some() && own == counter(self.shown) {
            // SAFETY: it still is the descriptor that we made, which nobody owns.
            drop(unsafe { OwnedFd::from_raw_fd(self.shown) });
        }
    }
}

/// Which event counter a descriptor stands for, as the kernel numbers them; `None` if it is
/// something else.
fn counter(fd: RawFd) -> Option<String> {
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
    info.lines().find(|line| line.starts_with("eventfd-id:")).map(str::to_owned)
}

impl<T> Inbox<T> {
    /// An empty one. Errors when the kernel has no descriptor for it.
    pub fn new() -> std::io::Result<Self> {
        let running = Running { last_id: 0, by_id: HashMap::new(), ended: Vec::new() };
        Ok(Inbox { bell: Arc::new(Bell::new()?), work: Mutex::new(running) })
    }

    /// Readable while something waits to be drained.
    pub fn fd(&self) -> RawFd {
        self.bell.shown
    }

    /// Starts work; the id is unique for the inbox's life.
    pub fn start(&self, work: impl Future<Output = T> + Send + 'static) -> u64 {
        let mut running = self.running();
        running.last_id += 1;
        let id = running.last_id;
        running.by_id.insert(id, Box::pin(work));
        if running.go_on(id, &self.bell) {
            self.bell.ring(None);
        }
        id
    }

    /// What ended since the last time, in the order in which it did. Never waits.
    pub fn drain(&self) -> Vec<(u64, T)> {
        let woken = self.bell.listen();
        let mut running = self.running();
        for id in woken {
            running.go_on(id, &self.bell);
        }
        std::mem::take(&mut running.ended)
    }

    /// How much has not been drained yet.
    pub fn len(&self) -> usize {
        let running = self.running();
        running.by_id.len() + running.ended.len()
    }

    fn running(&self) -> MutexGuard<'_, Running<T>> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Running<T> {
    /// Answers whether it came to its end.
    fn go_on(&mut self, id: u64, bell: &Arc<Bell>) -> bool {
        // Woken more often than needed: it has ended already.
        let Some(work) = self.by_id.get_mut(&id) else { return false };
        let waker = Waker::from(Arc::new(Call { id, bell: Arc::clone(bell) }));
        let Poll::Ready(end) = work.as_mut().poll(&mut Context::from_waker(&waker)) else {
            return false;
        };
        self.by_id.remove(&id);
        self.ended.push((id, end));
        true
    }
}
