//! sink.crowsnest.io/v1alpha1: stores outside of Crowsnest that are kept in sync with the cache. Written by users; the
//! status is written by the graph sink controller.

use crate::object::{api_structs, kinds};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// The API group of this module.
pub const GROUP: &str = "sink.crowsnest.io";

kinds! { "sink.crowsnest.io", "v1alpha1";
    /// GraphSink keeps a graph database equal to the objects of the fleet that a ServiceAccount may list.
    GraphSink(Namespaced, "graphsinks") { spec: GraphSinkSpec, status(skip): GraphSinkStatus }
}

api_structs! {
    /// GraphSinkSpec is the database and the objects that are written to it.
    pub struct GraphSinkSpec {
        /// Address is the Bolt address of the database: bolt://HOST:PORT, or bolt+s://HOST:PORT with TLS. Credentials are sent
        /// with TLS only.
        #[schemars(length(min = 1))]
        pub address: String,
        /// SecretRef names a Secret in the namespace of the sink, with the keys username and password, and
        /// ca.crt for a private certificate authority. Without it, the database must need no authentication.
        pub secret_ref?: SinkSecretReference,
        /// Database is the name of the database. Defaults to the default database of the user. It belongs to this sink alone.
        pub database(skip): String,
        /// Query selects objects, in the query language of searches. Defaults to all.
        pub query(skip): String,
        /// ServiceAccountName is the ServiceAccount in the namespace of the sink whose permissions in each cluster decide
        /// which objects are written.
        #[schemars(length(min = 1))]
        pub service_account_name: String,
    }

    /// SinkSecretReference names a Secret in the namespace of the sink.
    pub struct SinkSecretReference {
        #[schemars(length(min = 1))]
        pub name: String,
    }

    /// GraphSinkStatus is the state of the graph.
    pub struct GraphSinkStatus {
        /// ObservedGeneration is the generation of the spec that the sink follows.
        pub observed_generation(skip): i64,
        /// Conditions are Connected and Synced.
        pub conditions(skip): Vec<Condition>,
        /// LastCheckedAt is the time at which the controller last wrote this status. It does so about every 30 seconds.
        pub last_checked_at?: Time,
        /// Lag is the number of changes of the cache that the graph may lack.
        pub lag: i64,
        /// NodesWritten is the number of nodes written since the process started.
        pub nodes_written(skip): i64,
        /// NodesRemoved is the number of nodes removed since the process started, sweeps included.
        pub nodes_removed(skip): i64,
        /// ObjectsSkipped is the number of times that an object could not be read from the cache and was skipped since the
        /// sink started. The graph lacks its current state.
        pub objects_skipped(skip): i64,
        /// UndecidedClusters are clusters in which the permissions of the ServiceAccount are unknown at present: their nodes
        /// stay as they are.
        pub undecided_clusters(skip): Vec<String>,
        /// LastError is the last error, with the next step.
        pub last_error(skip): String,
    }
}
