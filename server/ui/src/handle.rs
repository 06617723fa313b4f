//! Handles of browser sessions that are kept in this process. Has no side effects.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};

/// Hash of a handle. Only the browser has the handle itself.
pub(super) type Fingerprint = [u8; 32];

pub(super) fn fingerprint(handle: &str) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.copy_from_slice(digest(&SHA256, handle.as_bytes()).as_ref());
    fingerprint
}

/// Encodes random bytes as a handle.
pub(super) fn encode_handle(random: [u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(random)
}
