//! Names the features that macros and build scripts of other libraries are built with.
//!
//! A crate that is built alone asks `syn` and its like for other features than the workspace does.
//! Then each library that uses a macro is compiled again. When this crate is built with it, the features
//! are the same. They are features of build dependencies: cargo does not mix them with those of
//! the libraries that a program contains, so a feature that the crate does not ask for is still
//! missing.

#![forbid(unsafe_code)]
