//! `search.karmada.io/v1alpha1`: reads and writes over all members.

pub(crate) mod proxying;
