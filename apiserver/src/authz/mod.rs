//! May they: RBAC, escalation checks, access reviews, impersonation.
