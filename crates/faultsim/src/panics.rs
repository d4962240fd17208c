//! Panics of tasks, which the runtime catches.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

use crate::world::World;

thread_local! {
    /// The panics of this thread; `None` while nothing watches it.
    static SEEN: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Notes each panic of this thread until [`look`]. The hook that was set before is still called.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            note(info);
            before(info);
        }));
    });
    SEEN.set(Some(Vec::new()));
}

/// It must not panic itself, also where the thread is at its end.
fn note(info: &panic::PanicHookInfo<'_>) {
    _ = SEEN.try_with(|seen| {
        if let Ok(mut seen) = seen.try_borrow_mut()
            && let Some(seen) = &mut *seen
        {
            seen.push(info.to_string());
        }
    });
}

/// Each panic of this thread since [`watch`] is a finding.
pub fn look(world: &World) {
    SEEN.take().into_iter().flatten().for_each(|panic| world.finding("panic", panic));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_that_a_runtime_catches_is_a_finding() {
        let runtime = crate::network::virtual_runtime();
        runtime.block_on(async {
            let world = World::new(7, false);
            let panics = || tokio::spawn(async { panic!("a task of the test") });
            watch();
            look(&world);
            assert!(world.lock().findings.is_empty());
            assert!(panics().await.is_err());
            look(&world);
            assert!(world.lock().findings.is_empty(), "nothing watched the thread");
            watch();
            assert!(panics().await.is_err());
            look(&world);
            look(&world);
            let state = world.lock();
            let [finding] = &state.findings[..] else { panic!("{:?}", state.findings) };
            assert!(finding.kind == "panic" && finding.what.contains("a task of the test"));
        });
    }
}
