//! What hits are ranked by: where a word was found. The same for every engine.

/// How much more an exact name counts than a word somewhere in the manifest.
pub const NAME_EXACT: f32 = 100.0;
pub const NAME_PREFIX: f32 = 40.0;
pub const ANYTHING: f32 = 10.0;
pub const MESSAGE: f32 = 3.0;
pub const CONTENT: f32 = 1.0;
