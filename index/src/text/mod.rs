//! Objects as text engines see them: the columns of a document, and how text becomes terms. The same for every engine.

pub mod columns;
pub mod document;
pub mod manifest;
pub mod tokens;
