/// Writes the named methods of [`Tier`](crate::Tier) or [`Observe`](crate::Observe) for a type that
/// leaves them to the tier in one of its fields. Both traits must be in scope.
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// use kvtier_core::*;
///
/// /// Counts the loads of the tier inside it.
/// #[derive(Debug)]
/// struct CountLoads {
///     inner: Arc<dyn Tier>,
///     loads: AtomicUsize,
/// }
///
/// impl Tier for CountLoads {
///     delegate_tier!(inner: caps lookup lookup_in_memory touch save remove release release_keys);
///     delegate_tier!(inner: ready peek spill_to atomic_set_of set_quota close);
///
///     fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
///         self.loads.fetch_add(ops.len(), Ordering::Relaxed);
///         self.inner.load(ctx, ops)
///     }
/// }
///
/// impl Observe for CountLoads {
///     delegate_tier!(inner: usage keys listen status);
/// }
/// ```
#[macro_export]
macro_rules! delegate_tier {
    ($inner:tt: $($method:ident)+) => { $($crate::delegate_tier!(@$method $inner);)+ };
    (@caps $inner:tt) => {
        fn caps(&self) -> &$crate::Caps {
            self.$inner.caps()
        }
    };
    (@lookup $inner:tt) => {
        fn lookup(
            &self,
            ctx: &$crate::Ctx,
            keys: ::std::sync::Arc<[$crate::Key]>,
            mode: $crate::Mode,
            hold: $crate::Hold,
        ) -> $crate::Ticket<Result<$crate::LookedUp, $crate::Error>> {
            self.$inner.lookup(ctx, keys, mode, hold)
        }
    };
    (@lookup_in_memory $inner:tt) => {
        fn lookup_in_memory(&self, keys: &[$crate::Key]) -> Vec<$crate::Presence> {
            self.$inner.lookup_in_memory(keys)
        }
    };
    (@touch $inner:tt) => {
        fn touch(&self, keys: &[$crate::Digest], hint: &$crate::Hint) {
            self.$inner.touch(keys, hint);
        }
    };
    (@load $inner:tt) => {
        fn load(
            &self,
            ctx: &$crate::Ctx,
            ops: Vec<$crate::Load>,
        ) -> $crate::Ticket<Vec<$crate::Done<$crate::Load, $crate::Loaded>>> {
            self.$inner.load(ctx, ops)
        }
    };
    (@save $inner:tt) => {
        fn save(
            &self,
            ctx: &$crate::Ctx,
            ops: Vec<$crate::Save>,
        ) -> $crate::Ticket<Vec<$crate::Done<$crate::Save, $crate::Saved>>> {
            self.$inner.save(ctx, ops)
        }
    };
    (@remove $inner:tt) => {
        fn remove(
            &self,
            ctx: &$crate::Ctx,
            keys: ::std::sync::Arc<[$crate::Key]>,
        ) -> $crate::Ticket<Result<$crate::Removed, $crate::Error>> {
            self.$inner.remove(ctx, keys)
        }
    };
    (@release $inner:tt) => {
        fn release(&self, hold: $crate::HoldId) {
            self.$inner.release(hold);
        }
    };
    (@release_keys $inner:tt) => {
        fn release_keys(&self, hold: $crate::HoldId, keys: &[$crate::Digest]) {
            self.$inner.release_keys(hold, keys);
        }
    };
    (@ready $inner:tt) => {
        fn ready(&self, ctx: &$crate::Ctx) -> $crate::Ticket<Result<(), $crate::Error>> {
            self.$inner.ready(ctx)
        }
    };
    (@peek $inner:tt) => {
        fn peek(&self, key: &$crate::Key) -> Option<$crate::View> {
            self.$inner.peek(key)
        }
    };
    (@spill_to $inner:tt) => {
        fn spill_to(&self, spill: ::std::sync::Arc<dyn $crate::Spill>) -> bool {
            self.$inner.spill_to(spill)
        }
    };
    (@atomic_set_of $inner:tt) => {
        fn atomic_set_of(&self, key: &$crate::Key) -> Option<::std::sync::Arc<[$crate::Digest]>> {
            self.$inner.atomic_set_of(key)
        }
    };
    (@set_quota $inner:tt) => {
        fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
            self.$inner.set_quota(tenant, bytes)
        }
    };
    (@close $inner:tt) => {
        fn close(&self) -> $crate::Ticket<Result<(), $crate::Error>> {
            self.$inner.close()
        }
    };
    (@usage $inner:tt) => {
        fn usage(&self) -> $crate::Usage {
            self.$inner.usage()
        }
    };
    (@keys $inner:tt) => {
        fn keys(&self, from: $crate::Cursor, max: usize) -> $crate::KeyPage {
            self.$inner.keys(from, max)
        }
    };
    (@listen $inner:tt) => {
        fn listen(&self, listener: ::std::sync::Arc<dyn $crate::Listener>) {
            self.$inner.listen(listener);
        }
    };
    (@status $inner:tt) => {
        fn status(&self) -> $crate::Status {
            self.$inner.status()
        }
    };
}
