//! Autoscaling over clusters: what a FederatedHPA makes of its pods' metrics, and when and how the rules of a
//! CronFederatedHPA run. The rules for metrics and behaviour are those of Kubernetes' HorizontalPodAutoscaler; what is
//! counted over the pods of all clusters is brought back to the template's replicas.

pub mod behavior;
pub mod cron;
pub mod defaults;
pub mod federated;
pub mod metrics;
pub mod pods;
pub mod replicas;
pub mod rules;
