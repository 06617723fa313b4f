//! What a browser's session is known by, where it is kept in this process. Pure.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};

/// A handle is in no memory but its browser's.
pub(super) type Fingerprint = [u8; 32];

pub(super) fn fingerprint(handle: &str) -> Fingerprint {
    let mut fingerprint = Fingerprint::default();
    fingerprint.copy_from_slice(digest(&SHA256, handle.as_bytes()).as_ref());
    fingerprint
}

/// The handle that so many random bytes are.
pub(super) fn handle(random: [u8; 32]) -> String {
    URL_SAFE_NO_PAD.encode(random)
}
