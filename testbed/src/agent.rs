//! The client of a guest's agent: one JSON object a line, answered by one (`testbed/guest/agent.py`).

use serde_json::{Value, json};
use std::{
    error::Error,
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    time::Duration,
};

/// Whatever went wrong, in words.
pub type Failure = Box<dyn Error + Send + Sync>;

/// A connection to an agent.
#[derive(Debug)]
pub struct Agent {
    stream: TcpStream,
    lines: BufReader<TcpStream>,
}

impl Agent {
    /// Connects to `address`, as `IP:PORT`.
    ///
    /// # Errors
    /// What the network says.
    pub fn connect(address: &str) -> Result<Self, Failure> {
        let stream = TcpStream::connect(address).map_err(|error| format!("agent at {address}: {error}"))?;
        stream.set_read_timeout(Some(Duration::from_secs(120)))?;
        stream.set_nodelay(true)?;
        let lines = BufReader::new(stream.try_clone()?);
        Ok(Self { stream, lines })
    }

    /// Calls `op` and gives its result.
    ///
    /// # Errors
    /// What the agent or the network says.
    pub fn call(&mut self, op: &str, args: &Value) -> Result<Value, Failure> {
        writeln!(self.stream, "{}", json!({ "op": op, "args": args }))?;
        let mut line = String::new();
        self.lines.read_line(&mut line)?;
        let mut reply: Value = serde_json::from_str(&line).map_err(|error| format!("{op}: {error}"))?;
        if reply["ok"] != true {
            return Err(format!("{op}: {}", reply["error"]).into());
        }
        Ok(reply["result"].take())
    }

    /// Calls `op` and gives the field `name` of its result as a number.
    ///
    /// # Errors
    /// As [`Agent::call`], or if there is no such number.
    pub fn number(&mut self, op: &str, args: &Value, name: &str) -> Result<u64, Failure> {
        let result = self.call(op, args)?;
        result[name].as_u64().ok_or_else(|| format!("{op} gave no {name}: {result}").into())
    }
}
