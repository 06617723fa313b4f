//! Server of the Model Context Protocol (MCP): eight tools with which assistants read the fleet.
//!
//! The tools send requests to Crowsnest's own APIs through [`Api`], as the caller, so authentication, authorization and
//! filtering by permissions are those of the APIs. This crate reads and writes JSON-RPC messages ([`message`],
//! [`methods`]), maps tool arguments to requests ([`tools`]), and renders bounded output without secrets ([`output`]).
//!
//! Two transports use it: [`stdio`] (`crowsnest mcp`) and [`http`] (`POST /mcp`). Both are stateless. A request whose
//! `_meta` has a protocol version follows revision 2026-07-28, any other the revisions with the `initialize` handshake.

pub mod api;
pub mod http;
pub mod message;
pub mod methods;
mod output;
mod prompts;
mod resources;
pub mod stdio;
#[cfg(test)]
mod tests;
mod tools;

pub use api::{Api, ApiRequest, ApiResponse};
pub use tools::MAX_COMPLETE_COLUMN_BYTES;
