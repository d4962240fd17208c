//! Libraries that come in through other libraries, found in cargo's resolved graph.

use std::collections::{BTreeMap, VecDeque};

use anyhow::{Context, Result};
use serde_json::Value;

use super::plan::{LIBRARIES, NOT_EVEN_INDIRECTLY};
use crate::tidy::Problem;
use crate::workspace::short_name_of;

/// Package id → its name, and the ids of what it is built from (tests left out).
#[derive(Debug, Default)]
pub struct Graph {
    names: BTreeMap<String, String>,
    edges: BTreeMap<String, Vec<String>>,
    members: Vec<String>,
}

impl Graph {
    /// Reads the graph out of the full answer of `cargo metadata`.
    pub fn parse(metadata: &Value) -> Result<Graph> {
        let mut graph = Graph::default();
        let id = |value: &Value| {
            value.as_str().map(String::from).context("cargo metadata without a package id")
        };
        for package in metadata["packages"].as_array().into_iter().flatten() {
            graph.names.insert(id(&package["id"])?, id(&package["name"])?);
        }
        for member in metadata["workspace_members"].as_array().into_iter().flatten() {
            graph.members.push(id(member)?);
        }
        for node in metadata["resolve"]["nodes"].as_array().into_iter().flatten() {
            let deps =
                node["deps"].as_array().into_iter().flatten().filter(|dep| !only_for_tests(dep));
            graph
                .edges
                .insert(id(&node["id"])?, deps.map(|dep| id(&dep["pkg"])).collect::<Result<_>>()?);
        }
        Ok(graph)
    }

    /// The names on a shortest way from `start` to a package called `goal` that passes no other
    /// member.
    fn way<'a>(&'a self, start: &'a str, goal: &str) -> Option<Vec<&'a str>> {
        let mut came_from: BTreeMap<&str, &str> = BTreeMap::new();
        let mut queue = VecDeque::from([start]);
        while let Some(at) = queue.pop_front() {
            if self.names[at] == goal {
                return Some(self.trace(at, &came_from));
            }
            for next in self.edges.get(at).into_iter().flatten() {
                let seen = next == start || came_from.contains_key(next.as_str());
                if !seen && !self.members.contains(next) {
                    came_from.insert(next, at);
                    queue.push_back(next);
                }
            }
        }
        None
    }

    fn trace<'a>(&'a self, end: &'a str, came_from: &BTreeMap<&'a str, &'a str>) -> Vec<&'a str> {
        let steps = std::iter::successors(Some(end), |at| came_from.get(at).copied());
        let mut names: Vec<&str> = steps.map(|id| self.names[id].as_str()).collect();
        names.reverse();
        names
    }
}

/// Members that are built from a library that belongs to other crates. Direct use is left to the
/// manifests' check.
pub fn check(graph: &Graph) -> Vec<Problem> {
    let mut problems = Vec::new();
    for member in &graph.members {
        let name = short_name_of(&graph.names[member]);
        for library in NOT_EVEN_INDIRECTLY {
            let crates = LIBRARIES
                .iter()
                .find(|(names, _)| names.contains(library))
                .map_or(&[][..], |(_, crates)| crates);
            let way = if crates.contains(&name) { None } else { graph.way(member, library) };
            if let Some(way) = way.filter(|way| way.len() > 2) {
                let what = format!("{} is built from {library}: {}", way[0], way.join(" → "));
                problems.push(Problem::new(
                    "Cargo.lock",
                    1,
                    what,
                    "turn off the feature that brings it in",
                ));
            }
        }
    }
    problems
}

fn only_for_tests(dep: &Value) -> bool {
    dep["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().all(|kind| kind["kind"] == "dev"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(middle_kind: Value) -> Vec<String> {
        let dep = |name: &str, kind: Value| serde_json::json!({"pkg": name, "dep_kinds": [{"kind": kind}]});
        let package = |name: &str| serde_json::json!({"id": name, "name": name});
        let names = ["kvtier-file", "kvtier-s3", "middle", "tokio"];
        let metadata = serde_json::json!({
            "packages": names.map(package),
            "workspace_members": ["kvtier-file", "kvtier-s3"],
            "resolve": {"nodes": [
                {"id": "kvtier-file", "deps": [dep("middle", middle_kind)]},
                {"id": "kvtier-s3", "deps": [dep("middle", Value::Null)]},
                {"id": "middle", "deps": [dep("tokio", Value::Null)]},
                {"id": "tokio", "deps": []},
            ]},
        });
        check(&Graph::parse(&metadata).unwrap()).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_library_that_comes_through_another_is_found() {
        let found = problems(Value::Null);
        assert_eq!(found.len(), 1, "s3 may");
        assert!(found[0].contains("kvtier-file → middle → tokio"));
    }

    #[test]
    fn tests_may_be_built_from_it() {
        assert!(problems("dev".into()).is_empty());
    }
}
