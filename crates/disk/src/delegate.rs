/// Makes a type whose first field is a [`Disk`](crate::Disk) the tier that it wraps.
#[macro_export]
macro_rules! tier_of_disk {
    ($tier:ty) => {
        const _: () = {
            use std::sync::Arc;

            use $crate::kvtier_core::{
                Caps, Ctx, Cursor, Digest, Done, Error, Hint, Hold, HoldId, Key, KeyPage, Listener,
                Load, Loaded, LookedUp, Mode, Observe, Presence, Removed, Save, Saved, Status,
                Ticket, Tier, Usage,
            };

            impl Tier for $tier {
                fn caps(&self) -> &Caps {
                    self.0.caps()
                }

                fn lookup(
                    &self,
                    ctx: &Ctx,
                    keys: Arc<[Key]>,
                    mode: Mode,
                    hold: Hold,
                ) -> Ticket<Result<LookedUp, Error>> {
                    self.0.lookup(ctx, keys, mode, hold)
                }

                fn lookup_in_memory(&self, keys: &[Key]) -> Vec<Presence> {
                    self.0.lookup_in_memory(keys)
                }

                fn touch(&self, keys: &[Digest], hint: &Hint) {
                    self.0.touch(keys, hint);
                }

                fn load(&self, ctx: &Ctx, ops: Vec<Load>) -> Ticket<Vec<Done<Load, Loaded>>> {
                    self.0.load(ctx, ops)
                }

                fn save(&self, ctx: &Ctx, ops: Vec<Save>) -> Ticket<Vec<Done<Save, Saved>>> {
                    self.0.save(ctx, ops)
                }

                fn remove(&self, ctx: &Ctx, keys: Arc<[Key]>) -> Ticket<Result<Removed, Error>> {
                    self.0.remove(ctx, keys)
                }

                fn release(&self, hold: HoldId) {
                    self.0.release(hold);
                }

                fn release_keys(&self, hold: HoldId, keys: &[Digest]) {
                    self.0.release_keys(hold, keys);
                }

                fn ready(&self, ctx: &Ctx) -> Ticket<Result<(), Error>> {
                    self.0.ready(ctx)
                }

                fn atomic_set_of(&self, key: &Key) -> Option<Arc<[Digest]>> {
                    self.0.atomic_set_of(key)
                }

                fn set_quota(&self, tenant: &str, bytes: Option<u64>) -> bool {
                    self.0.set_quota(tenant, bytes)
                }

                fn close(&self) -> Ticket<Result<(), Error>> {
                    self.0.close()
                }
            }

            impl Observe for $tier {
                fn usage(&self) -> Usage {
                    self.0.usage()
                }

                fn keys(&self, from: Cursor, max: usize) -> KeyPage {
                    self.0.keys(from, max)
                }

                fn listen(&self, listener: Arc<dyn Listener>) {
                    self.0.listen(listener);
                }

                fn status(&self) -> Status {
                    self.0.status()
                }
            }
        };
    };
}
