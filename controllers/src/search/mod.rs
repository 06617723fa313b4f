//! Search: ResourceRegistries and their backend stores, and graph sinks.

mod activity;
pub mod backend_stores;
mod conditions;
pub mod graph_sinks;
pub mod resource_registry;

use sha2::{Digest, Sha256};

/// Name of something whose identity is secret or long: the first 16 bytes of the SHA-256 digest of the identity, in
/// hexadecimal.
fn digest_name(identity: &str) -> String {
    Sha256::digest(identity.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_does_not_contain_the_identity() {
        let identity = "0f8e2c1d9b7a4655";
        let name = digest_name(identity);
        assert_eq!((name.len(), name.as_str()), (32, digest_name(identity).as_str()));
        assert!(!name.contains(&identity[..8]) && name != digest_name("another"));
    }
}
