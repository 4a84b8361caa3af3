"""An environment of verifiers with several turns: the user asks for something shorter until it is told twice."""

import verifiers.v1 as vf
from vf_sums import written

__all__ = ["Talk", "TalkEnv"]


class Chatter(vf.Task[vf.TaskData]):
    @vf.reward
    async def turns(self, trace: vf.Trace) -> float:
        return written("turns", trace.last_reply, float(trace.num_turns))

    @vf.reward(weight=0.25)
    async def brevity(self, trace: vf.Trace) -> float:
        first, last = trace.assistant_messages[0].content or "", trace.last_reply
        return written("brevity", trace.last_reply, float(len(first) - len(last)))


class Talk(vf.Taskset[Chatter, vf.TasksetConfig]):
    def load(self):
        for i in range(12):
            yield Chatter(vf.TaskData(prompt=f"Start with {i}. Add 3.", system_prompt="Be brief."), self.config.task)


class TalkConfig(vf.EnvConfig):
    agent: vf.AgentConfig = vf.AgentConfig()


class TalkEnv(vf.Env[TalkConfig]):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as talk:
            reply = await talk.turn()
            for _ in range(2):
                if reply.terminated:
                    return
                reply = await talk.turn(f"That had {len(reply.last_reply)} letters. Shorter.")
