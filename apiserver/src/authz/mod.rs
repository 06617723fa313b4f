//! May they: RBAC, escalation checks, access reviews, impersonation.

pub mod default_roles;
pub mod escalation;
pub mod rbac;
pub mod rules;
