//! Who asks: the identity that authentication found and everything behind it passes on.

use std::collections::BTreeMap;

/// Members of this group may do everything.
pub const MASTERS: &str = "system:masters";
pub const AUTHENTICATED: &str = "system:authenticated";
pub const UNAUTHENTICATED: &str = "system:unauthenticated";
pub const ANONYMOUS: &str = "system:anonymous";

/// `authentication.k8s.io` `UserInfo`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct UserInfo {
    pub name: String,
    pub uid: String,
    pub groups: Vec<String>,
    pub extra: BTreeMap<String, Vec<String>>,
}

impl UserInfo {
    pub fn new(name: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self { name: name.into(), groups: groups.into_iter().map(Into::into).collect(), ..Self::default() }
    }

    /// The process itself: may do everything.
    pub fn system() -> Self {
        Self::new("system:crowsnest", [MASTERS])
    }

    pub fn is_master(&self) -> bool {
        self.groups.iter().any(|group| group == MASTERS)
    }

    /// With the group every API server adds by itself.
    pub fn completed(mut self) -> Self {
        let own = if self.name == ANONYMOUS { UNAUTHENTICATED } else { AUTHENTICATED };
        if !self.groups.iter().any(|group| group == own) {
            self.groups.push(own.to_owned());
        }
        self
    }
}
