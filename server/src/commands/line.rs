//! The command line as a whole: help, completion, manual pages, normalization of flags, and settings from files and the
//! environment.

pub(crate) mod complete;
pub(super) mod environment;
pub(super) mod help;
pub(super) mod man;
pub(super) mod normalize;
pub(super) mod settings;
