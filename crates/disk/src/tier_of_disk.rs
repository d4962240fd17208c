/// Makes a type whose first field is a [`Disk`](crate::Disk) the tier that it wraps.
#[macro_export]
macro_rules! tier_of_disk {
    ($tier:ty) => {
        const _: () = {
            use $crate::kvtier_core::{Observe, Tier, delegate_tier};

            // No `peek` and no `spill_to`: files have no bytes in memory to show or to hand over.
            impl Tier for $tier {
                delegate_tier!(0: caps lookup lookup_in_memory touch load save remove release);
                delegate_tier!(0: release_keys ready atomic_set_of set_quota close);
            }

            impl Observe for $tier {
                delegate_tier!(0: usage keys listen status);
            }
        };
    };
}
