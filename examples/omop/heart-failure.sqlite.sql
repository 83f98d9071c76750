-- Heart failure: one row a person, at the day of the first diagnosis (the index date).
-- For SQLite, whose dates are texts; heart-failure.sql has the same for PostgreSQL and DuckDB.
-- In a CDM with vocabularies the concepts would be those below them in concept_ancestor.
with diagnosis as (
    select person_id, min(condition_start_date) as index_date
    from condition_occurrence
    where condition_concept_id = 316139
    group by person_id
),
cohort as (
    select d.person_id, d.index_date, o.observation_period_end_date as end_date
    from diagnosis d
    join observation_period o on o.person_id = d.person_id
        and d.index_date between o.observation_period_start_date and o.observation_period_end_date
    -- Known for half a year before, and followed for a year unless dead.
    where julianday(d.index_date) - julianday(o.observation_period_start_date) >= 183
        and d.index_date between '2016-01-01' and '2022-12-31'
),
creatinine as (
    select c.person_id,
        case m.unit_concept_id
            when 8840 then round(m.value_as_number, 2)
            when 8749 then round(m.value_as_number / 88.42, 2)  -- umol/l
        end as mg_per_dl,
        row_number() over (
            partition by c.person_id order by m.measurement_date desc, m.measurement_id desc
        ) as place
    from cohort c
    join measurement m on m.person_id = c.person_id
        and m.measurement_concept_id = 3016723
        and m.measurement_date <= c.index_date
        and m.value_as_number is not null
)
select
    c.person_id,
    cast(strftime('%Y', c.index_date) as integer) - p.year_of_birth as age,
    case p.gender_concept_id when 8507 then 'M' when 8532 then 'F' end as sex,
    k.mg_per_dl as creatinine,
    case when exists (
        select 1 from condition_occurrence o
        where o.person_id = c.person_id and o.condition_concept_id = 201826
            and o.condition_start_date <= c.index_date
    ) then 'yes' else 'no' end as diabetes,
    case when exists (
        select 1 from drug_exposure e
        where e.person_id = c.person_id and e.drug_concept_id = 1308216
            and e.drug_exposure_start_date <= c.index_date
            and julianday(c.index_date) - julianday(e.drug_exposure_start_date) <= 180
    ) then 'yes' else 'no' end as lisinopril,
    case when julianday(d.death_date) - julianday(c.index_date) <= 365 then 1 else 0 end as died_1y,
    cast(julianday(coalesce(d.death_date, c.end_date)) - julianday(c.index_date) as integer) as days,
    case when d.death_date is null then 0 else 1 end as died
from cohort c
join person p on p.person_id = c.person_id
left join creatinine k on k.person_id = c.person_id and k.place = 1
left join death d on d.person_id = c.person_id
order by c.person_id
