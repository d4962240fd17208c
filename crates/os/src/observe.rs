//! Makes calls, which a simulated process sees.

use crate::call::Call;

/// Makes a call that a simulated process sees.
#[cfg(not(feature = "simulate"))]
#[inline(always)]
pub fn observed<T, E>(_: Call<'_>, make: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    make()
}

/// Makes a call that a simulated process sees, and may let fail.
#[cfg(feature = "simulate")]
pub fn observed<T, E: From<nix::Error> + crate::simulated::Failure>(
    call: Call<'_>,
    make: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let Some(process) = crate::simulated::current() else { return make() };
    process.before(call)?;
    let made = make();
    match &made {
        Ok(_) => process.after(call),
        Err(error) => process.failed(call, error.number()),
    }
    made
}
