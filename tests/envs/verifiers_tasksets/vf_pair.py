"""An environment of verifiers with two roles: a writer, and a critic who is shown the draft."""

import verifiers.v1 as vf

__all__ = ["Drafts", "PairEnv"]


class Draft(vf.Task[vf.TaskData]):
    @vf.reward
    async def length(self, trace: vf.Trace) -> float:
        return float(len(trace.last_reply))


class Drafts(vf.Taskset[Draft, vf.TasksetConfig]):
    def load(self):
        for i in range(12):
            yield Draft(vf.TaskData(prompt=f"Write {i}."), self.config.task)


class PairConfig(vf.EnvConfig):
    writer: vf.AgentConfig = vf.AgentConfig()
    critic: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"})


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task, agents):
        draft = await agents.writer.run(task)
        await agents.critic.run(vf.Task(vf.TaskData(prompt=f"Judge: {draft.last_reply}")))

    async def finalize(self, task, episode):
        for trace in episode.by_agent["critic"]:
            trace.record_reward("harsh", float("bad" in trace.last_reply), 3.0)
