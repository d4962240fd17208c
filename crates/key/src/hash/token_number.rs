/// A whole number that may stand for a token. Engines use 32 bits; the others are for what LMCache
/// accepts besides.
pub trait Token: Copy + sealed::Sealed {
    /// The token as an unsigned number of 32 bits, if it is one.
    fn as_u32(self) -> Option<u32>;

    /// CPython's `hash()` of the token.
    fn python_hash(self) -> i64;

    /// The token's value.
    fn value(self) -> i128;
}

impl Token for u32 {
    fn as_u32(self) -> Option<u32> {
        Some(self)
    }

    fn python_hash(self) -> i64 {
        // Below the modulus, so a number is its own hash.
        self.into()
    }

    fn value(self) -> i128 {
        self.into()
    }
}

macro_rules! wide_tokens {
    ($($int:ty),*) => {$(
        impl Token for $int {
            fn as_u32(self) -> Option<u32> {
                u32::try_from(self).ok()
            }

            fn python_hash(self) -> i64 {
                super::builtin::int_hash(self.into())
            }

            fn value(self) -> i128 {
                self.into()
            }
        }
    )*};
}

wide_tokens!(i32, i64, u64, i128);

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for i32 {}
    impl Sealed for i64 {}
    impl Sealed for u64 {}
    impl Sealed for i128 {}
}
