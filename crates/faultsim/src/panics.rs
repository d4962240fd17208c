//! Panics of tasks, which the runtime catches.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;

use crate::world::World;

thread_local! {
    /// The panics of this thread that were not taken yet.
    static SEEN: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Notes each panic of this thread from now on. The hook that was set before is still called.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            SEEN.with_borrow_mut(|seen| seen.push(info.to_string()));
            before(info);
        }));
    });
    take();
}

/// Each panic of this thread since [`watch`] is a finding.
pub fn look(world: &World) {
    take().into_iter().for_each(|panic| world.finding("panic", panic));
}

fn take() -> Vec<String> {
    SEEN.with_borrow_mut(std::mem::take)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_that_a_runtime_catches_is_a_finding() {
        let runtime = crate::network::virtual_runtime();
        runtime.block_on(async {
            watch();
            let world = World::new(7, false);
            look(&world);
            assert!(world.lock().findings.is_empty());
            let task = tokio::spawn(async { panic!("a task of the test") });
            assert!(task.await.is_err());
            look(&world);
            look(&world);
            let state = world.lock();
            let [finding] = &state.findings[..] else { panic!("{:?}", state.findings) };
            assert!(finding.kind == "panic" && finding.what.contains("a task of the test"));
        });
    }
}
