//! Tables: declarative columns per kind and printing of cells.
