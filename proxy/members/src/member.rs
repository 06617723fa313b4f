//! An immutable snapshot of a member cluster, replaced on change.

use crate::credentials::Token;
use crate::{ApiResources, Connection, Error, ImpersonatedAttributes, Probe};
use crowsnest_api::cluster::{Cluster, ClusterSpec, ClusterStatus};
use crowsnest_api::constants::annotation::{IMPERSONATES, IMPERSONATES_ALL_ATTRIBUTES};
use crowsnest_apimachinery::names::ClusterName;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A snapshot of a Cluster object with its connection.
#[derive(Debug, Clone)]
pub struct Member {
    pub(crate) name: ClusterName,
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) connection: Result<Arc<Connection>, Error>,
    pub(crate) impersonator: Result<Token, Error>,
}

impl Member {
    pub fn name(&self) -> &ClusterName {
        &self.name
    }

    /// The complete Cluster object.
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    /// `metadata.uid`; it changes when a cluster leaves and joins again.
    pub fn uid(&self) -> &str {
        self.cluster.metadata.uid.as_deref().unwrap_or_default()
    }

    pub fn labels(&self) -> Option<&BTreeMap<String, String>> {
        self.cluster.metadata.labels.as_ref()
    }

    pub fn spec(&self) -> &ClusterSpec {
        &self.cluster.spec
    }

    pub fn status(&self) -> &ClusterStatus {
        &self.cluster.status
    }

    /// True if `metadata.deletionTimestamp` is set.
    pub fn is_deleting(&self) -> bool {
        self.cluster.metadata.deletion_timestamp.is_some()
    }

    /// True if condition Ready is True, as last written by the cluster status controller.
    pub fn is_ready(&self) -> bool {
        self.status().conditions.iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    }

    /// The connection, or the reason why there is none (missing Secret, invalid endpoint).
    pub fn connection(&self) -> Result<&Arc<Connection>, Error> {
        self.connection.as_ref().map_err(Clone::clone)
    }

    /// Client with the permissions of Crowsnest's service account.
    pub fn client(&self) -> Result<kube::Client, Error> {
        Ok(self.connection()?.client())
    }

    /// Token of the service account that may impersonate callers.
    pub fn impersonator_token(&self) -> Result<&Token, Error> {
        self.impersonator.as_ref().map_err(Clone::clone)
    }

    /// Attributes of callers that the impersonator may impersonate, according to the annotation [`IMPERSONATES`] of the Cluster.
    pub fn impersonated_attributes(&self) -> ImpersonatedAttributes {
        let annotations = self.cluster.metadata.annotations.as_ref();
        match annotations
            .and_then(|all| all.get(IMPERSONATES))
            .is_some_and(|value| value == IMPERSONATES_ALL_ATTRIBUTES)
        {
            true => ImpersonatedAttributes::All,
            false => ImpersonatedAttributes::UserAndGroups,
        }
    }

    /// Probes the member's health. A failure is part of the result.
    pub async fn probe(&self) -> Probe {
        match self.client() {
            Ok(client) => crate::probe::probe(&client).await,
            Err(error) => Probe::unreachable(error.to_string()),
        }
    }

    /// Every resource that the member serves, from aggregated discovery if available.
    pub async fn api_resources(&self) -> Result<ApiResources, Error> {
        crate::discovery::discover(&self.client()?).await
    }

    /// True if the Cluster object, the connection and the token are unchanged.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        let connection = match (&self.connection, &other.connection) {
            (Ok(a), Ok(b)) => Arc::ptr_eq(a, b),
            (Err(a), Err(b)) => a.to_string() == b.to_string(),
            _ => false,
        };
        let impersonator = match (&self.impersonator, &other.impersonator) {
            (Ok(a), Ok(b)) => a == b,
            (Err(a), Err(b)) => a.to_string() == b.to_string(),
            _ => false,
        };
        connection
            && impersonator
            && self.cluster.metadata.uid == other.cluster.metadata.uid
            && self.cluster.metadata.resource_version == other.cluster.metadata.resource_version
    }
}
