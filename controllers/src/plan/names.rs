//! Names that must be equal to Karmada's, so that an existing control plane's objects are adopted as they are:
//! bindings, works, execution namespaces and the dependency labels. Read by every planner that builds an object.

/// Prefix of the namespace that holds a member's Works.
pub const EXECUTION_NAMESPACE_PREFIX: &str = "karmada-es-";

/// 32-bit FNV-1a.
pub fn fnv32a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Kubernetes' alphabet without vowels and look-alikes, indexed by the character code modulo its size.
pub fn safe_encode(text: &str) -> String {
    const ALPHABET: &[u8; 27] = b"bcdfghjklmnpqrstvwxz2456789";
    text.bytes().map(|byte| char::from(ALPHABET[usize::from(byte) % ALPHABET.len()])).collect()
}

/// `<name>-<kind>`, lower case, with the `:` of RBAC names replaced because a CRD's object name may not have it.
pub fn binding(kind: &str, name: &str) -> String {
    format!("{}-{kind}", name.replace(':', ".")).to_lowercase()
}

/// The Work that carries the object to a member; the hash keeps equal names of other kinds and namespaces apart.
pub fn work(kind: &str, name: &str, namespace: &str) -> String {
    let name = name.replace(':', ".").to_lowercase();
    let identity = match namespace {
        "" => format!("{name}-{kind}"),
        namespace => format!("{namespace}-{name}-{kind}"),
    };
    format!("{name}-{}", safe_encode(&fnv32a(&identity.to_lowercase()).to_string()))
}

/// The execution namespace of a member.
pub fn execution_namespace(cluster: &str) -> String {
    format!("{EXECUTION_NAMESPACE_PREFIX}{cluster}")
}

/// The member an execution namespace belongs to.
pub fn cluster_of_execution_namespace(namespace: &str) -> Option<&str> {
    namespace.strip_prefix(EXECUTION_NAMESPACE_PREFIX).filter(|cluster| !cluster.is_empty())
}

/// The label an attached binding carries for each binding that depends on it.
pub fn depended_by_label(namespace: &str, parent_binding: &str) -> String {
    let hash = fnv32a(&format!("{namespace}/{parent_binding}")).to_string();
    format!("resourcebinding.karmada.io/depended-by-{}", safe_encode(&hash))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_equal_karmadas() {
        assert_eq!(binding("ClusterRole", "system:Viewer"), "system.viewer-clusterrole");
        assert_eq!(work("Deployment", "nginx", "default"), "nginx-687f7fb96f");
        assert_eq!(work("Deployment", "web", "fl-deploy-duplicated"), "web-5978db7fb4");
        assert_eq!(work("Namespace", "fl-namespace-sync", ""), "fl-namespace-sync-5f5968664f");
        assert_eq!(cluster_of_execution_namespace("karmada-es-m1"), Some("m1"));
        assert_eq!(cluster_of_execution_namespace("karmada-es-"), None);
    }
}
