//! `cluster.karmada.io/v1alpha1`: clusters and their subresources.

pub(crate) mod attach;
